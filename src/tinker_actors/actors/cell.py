"""The loop that serves one actor's mailbox.

All of an actor's one-at-a-time messages are awaited inline in one task, which starts with the first message: a task
a message would cost more than everything else here. A message that finds the actor idle is begun at once, in the turn
of whoever sent it (see `inline`), and the task takes over what then waits. Only `@concurrent` messages get a task each.
"""

from __future__ import annotations

import asyncio
import inspect
import types
from collections.abc import Callable, Generator
from functools import partial
from time import perf_counter
from types import CoroutineType
from typing import TYPE_CHECKING, Any, cast

from tinker_actors.actors import traceparent
from tinker_actors.actors.actor import Actor, Kind
from tinker_actors.actors.call import ACTIVE, Call, Chain, current_call
from tinker_actors.actors.errors import ActorDiedError, ActorFailure, ActorStoppedError, DeadlineExceeded
from tinker_actors.actors.histogram import TimeHistogram
from tinker_actors.actors.inline import IDLE, resume
from tinker_actors.actors.mailbox import Interrupt, Mailbox, State
from tinker_actors.actors.message import Message, StreamMessage
from tinker_actors.actors.ref import Address

if TYPE_CHECKING:
    from tinker_actors.actors.host import Host
    from tinker_actors.actors.view import MeshView

TURN = 256  # messages served before other tasks of the loop get their turn
_STREAM = Kind.STREAM
STRIDE = 61  # messages from a timed one to the next, at most: a prime, so as not to fall in step with the program


class Cell(Mailbox):
    """A mailbox and the actor object that serves it.

    Attributes:
        instance: the actor of the present incarnation; None between two.
        failure: with `Interrupt.FAIL`, the cause.
        begun: concurrent messages begun.
        times: how long handlers took (streams left out); None before the first.
    """

    __slots__ = (
        "_labels",
        "begun",
        "failure",
        "instance",
        "times",
        "view",
    )

    view: MeshView

    def __init__(self, host: Host, cls: type[Actor], address: Address) -> None:
        super().__init__(host, cls, address)
        self.instance: Actor | None = None
        self.failure: BaseException | None = None
        self.begun = 0
        self.times: TimeHistogram | None = None
        self._labels: dict[str, Chain] = {}

    @property
    def served(self) -> int:
        """One-at-a-time messages begun, over all incarnations. Counted where it costs least, in a local variable."""
        return 0 if self.handling is None else inspect.getgeneratorlocals(self.handling)["served"]

    def request_exit(self) -> None:
        """End after the present message."""
        if self.interrupt is None:
            self.interrupt = Interrupt.EXIT
            self.wake()
            self.life.run()

    def fail(self, error: BaseException) -> None:
        """Make this incarnation fail from outside its one-at-a-time handler."""
        if self.interrupt is None:
            self.failure = error
            self._break(Interrupt.FAIL)
            self.life.run()

    def kill(self) -> None:
        """End this incarnation without serving what waits."""
        self._break(Interrupt.KILL)

    def _break(self, interrupt: Interrupt) -> None:
        self.interrupt = interrupt
        if self.running is not None and self.task is not None:
            if asyncio.current_task() is not self.task:
                self.task.cancel()
        else:
            self.wake()

    async def serve(self) -> BaseException | None:
        """Serve until interrupted, or until drained; the failure that ended this incarnation, or None."""
        queue = self.queue
        handling = self.handling
        if handling is None:
            handling = self.handling = cast("Generator[Any, Any, None]", self._handle())
            handling.send(None)
            self.serve_one = partial(self.context.run, handling.send)
        served = 0
        while self.interrupt is None:
            while queue and queue[0].spec.concurrent and len(self.concurrent) < self.capacity:
                self.begin(queue.popleft())
            if not queue or queue[0].spec.concurrent:
                if self.state is State.DRAINING and not queue and not self.concurrent:
                    return None
                self.host.idle()
                await self._wait()
                waits_for, self.waits_for = self.waits_for, IDLE
            else:
                message = queue.popleft()
                while queue and queue[0].spec.concurrent and len(self.concurrent) < self.capacity:
                    self.begin(queue.popleft())
                if self._room:
                    self._admit()
                if message.deadline is not None and message.deadline <= self.host.clock():
                    message.fail(self._too_late(message))
                    waits_for = IDLE
                else:
                    waits_for = handling.send(message)
                del message
                served += 1
            if waits_for is not IDLE:
                await resume(handling, waits_for)
                waits_for = IDLE  # what it was may hold a result that nobody else needs any more
            if self.broken is not None:
                failure, self.broken = self.broken, None
                return failure
            if served >= TURN:
                served = 0
                await asyncio.sleep(0)
        return self.failure

    @types.coroutine
    def _handle(self) -> Generator[Any, Any, None]:
        """Serve one-at-a-time messages: `send` takes one and gives what its handler waits for, at its end `IDLE`.

        It gives each outcome to the sender; what makes the actor itself fail is left in `broken`. One generator for
        all messages, because that one can be left and entered without an exception.
        """
        served = next_timed = 0
        labels, set_call = self._labels, current_call.set
        began = 0.0  # when the present message did, if it is timed
        record: Callable[[float], None] | None = None
        method, label = "", ((self.id, ""),)  # of the message before
        while True:
            message: Message = yield IDLE
            if message.method is not method:
                method = message.method
                label = labels.get(method)
                if label is None:
                    label = labels[method] = ((self.id, f"{self.name}.{method}"),)
            trace = message.trace
            call: Call = [message.chain + label if message.chain else label, message.deadline, trace, True]
            set_call(call)
            if trace is not None:
                trace = traceparent.enter(trace)
            self.running = message
            served += 1
            step: Any = None  # the method, its coroutine, and the value of that
            try:
                step = getattr(self.instance, method)
                if message.kind is _STREAM:
                    step = cast(StreamMessage, message).produce(step)
                elif message.kwargs:
                    step = step(*message.args, **message.kwargs)
                else:
                    step = step(*message.args)
                if step.__class__ is not CoroutineType:
                    step = step.__await__()
                if served >= next_timed:  # the 1st, 3rd, 9th, 27th, then one in `STRIDE`
                    next_timed = served + (2 * served if 2 * served < STRIDE else STRIDE)
                    began = perf_counter()
                step = yield from step  # pyright: ignore[reportUnknownVariableType]
            except BaseException as error:  # the boundary around user code; `_outcome` says whose each error is
                self.broken = self._outcome(message, error)
            else:
                if message.in_hand:
                    message.value = step
                    message.done = True
                else:
                    message.succeed(step)
            finally:
                if began:
                    if record is None:
                        record = self._start_timing()
                    if message.kind is not _STREAM:  # whose duration depends on its reader
                        record(perf_counter() - began)
                    began = 0.0
                self.running = None
                call[ACTIVE] = False
                if trace is not None:
                    traceparent.leave(trace)
                if message.cancelled or self.interrupt is not None:
                    forget_cancellation()
                del message, call, step  # while it waits for the next it keeps nothing alive

    def _start_timing(self) -> Callable[[float], None]:
        """What keeps how long a handler took."""
        if self.times is None:
            self.times = TimeHistogram()
        return self.times.record

    async def _wait(self) -> None:
        """Wait for a message, for one that was begun at once and now waits for something, or for an interrupt."""
        self.waiter = self.host.loop.create_future()
        try:
            await self.waiter
        except asyncio.CancelledError:
            if self.waits_for is IDLE or self.task is None:
                raise
            # Meant for the handler that was begun: what it waits for is to be cancelled, once this task waits for it.
            self.task.uncancel()
            self.task.cancel()
        finally:
            self.waiter = None

    def _outcome(self, message: Message, error: BaseException) -> BaseException | None:
        """Give a handler's error to the sender; returns it if the actor itself fails by it."""
        if isinstance(error, asyncio.CancelledError):
            if self.interrupt in (Interrupt.KILL, Interrupt.EXIT):
                message.fail(ActorStoppedError(f"actor {self.name} was stopped while it served {message.method}"))
            elif self.interrupt is Interrupt.FAIL:
                message.fail(self._died(self.failure))
            else:
                message.fail(error)  # its sender gave up, or the handler cancelled itself
            return None
        if isinstance(error, GeneratorExit):
            raise error
        if isinstance(error, Exception) and not isinstance(error, ActorFailure):
            message.raised(error)
            return error if message.is_tell else None
        message.raised(error if message.is_tell else self._died(error))
        if isinstance(error, KeyboardInterrupt):
            raise error
        return error  # SystemExit too: an actor ends only itself, not its process

    def _too_late(self, message: Message) -> DeadlineExceeded:
        return DeadlineExceeded(f"{self.name}.{message.method} was not begun by its deadline")

    def _died(self, error: BaseException | None) -> ActorDiedError:
        died = ActorDiedError(f"actor {self.name} failed: {type(error).__name__}: {error}")
        died.__cause__ = error
        return died

    def begin(self, message: Message) -> None:
        host = self.host
        self.begun += 1
        task = host.loop.create_task(self._serve_concurrently(message), context=host.context.copy())
        self.concurrent[message] = task
        task.add_done_callback(lambda _: self._concurrent_ended(message))

    async def _serve_concurrently(self, message: Message) -> None:
        failure = None
        timed = self.begun & (self.begun - 1) == 0 if self.begun < STRIDE else self.begun % STRIDE == 0
        call: Call = [message.chain, message.deadline, message.trace, True]
        current_call.set(call)
        if message.trace is not None:
            traceparent.enter(message.trace)  # the task's own context ends with it
        began = 0.0
        try:
            if message.deadline is not None and message.deadline <= self.host.clock():
                message.fail(self._too_late(message))
                return
            if timed:
                began = perf_counter()
            function = getattr(self.instance, message.method)
            if isinstance(message, StreamMessage):
                value = await message.produce(function)
            else:
                value = await function(*message.args, **message.kwargs)
        except BaseException as error:  # the boundary around user code; `_outcome` says whose each error is
            self.concurrent.pop(message, None)
            failure = self._outcome(message, error)
        else:
            self.concurrent.pop(message, None)  # before the sender can look
            message.succeed(value)
        finally:
            call[ACTIVE] = False
            if began and message.kind is not _STREAM:
                self._start_timing()(perf_counter() - began)
            if failure is not None:
                self.fail(failure)

    def _concurrent_ended(self, message: Message) -> None:
        self.concurrent.pop(message, None)
        if not message.done:  # cancelled before its first step
            message.fail(asyncio.CancelledError())
        if self._room:
            self._admit()
        if self.running is not None and self.interrupt is None:  # the serving loop is not there to begin the next
            queue = self.queue
            while queue and queue[0].spec.concurrent and len(self.concurrent) < self.capacity:
                self.begin(queue.popleft())
        elif self.queue or self.state is State.DRAINING:
            self.wake()


def forget_cancellation() -> None:
    """Take back the cancellations that were meant for a message or an incarnation, not for the actor's task."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()
