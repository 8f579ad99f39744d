"""The loop that serves one actor's mailbox.

All of an actor's one-at-a-time messages are awaited inline in one task, which starts with the first message: a task
a message would cost more than everything else here. A message that finds the actor idle is begun at once, in the turn
of whoever sent it (see `inline`), and the task takes over what then waits. Only `@concurrent` messages get a task each.
"""

from __future__ import annotations

import asyncio
import enum
import inspect
import types
from collections.abc import Generator
from contextvars import Context
from time import perf_counter
from types import CoroutineType
from typing import TYPE_CHECKING, Any, cast

from tinker_actors.actors import traceparent
from tinker_actors.actors.actor import Actor
from tinker_actors.actors.call import Call, Chain, current_call
from tinker_actors.actors.errors import ActorDiedError, ActorFailure, ActorStoppedError, DeadlineExceeded
from tinker_actors.actors.histogram import TimeHistogram
from tinker_actors.actors.inline import BUDGET, IDLE, enter_task, leave_task, put_aside, resume
from tinker_actors.actors.mailbox import Mailbox, State
from tinker_actors.actors.message import Message, StreamMessage
from tinker_actors.actors.ref import Address

if TYPE_CHECKING:
    from tinker_actors.actors.host import Host
    from tinker_actors.actors.view import MeshView

TURN = 256  # messages served before other tasks of the loop get their turn
ALL_TIMED = 32  # an actor's first messages, each of which is timed
STRIDE = 61  # of the later ones, one in so many: a prime, so as not to fall in step with the program


class Interrupt(enum.Enum):
    """Why the serving loop must end."""

    EXIT = 1  # the actor asked for its own end
    FAIL = 2  # a concurrent message or a child failed it
    KILL = 3  # stopped without draining


class Cell(Mailbox):
    """A mailbox and the actor object that serves it.

    Attributes:
        instance: the actor of the present incarnation; None between two.
        interrupt: why serving is to end.
        context: what `task` runs in, from when there is one.
        failure: with `Interrupt.FAIL`, the cause.
        begun: concurrent messages begun.
        times: how long handlers took (streams left out); None before the first.
    """

    __slots__ = (
        "_begun",
        "_broken",
        "_handling",
        "_labels",
        "begun",
        "context",
        "failure",
        "instance",
        "interrupt",
        "times",
        "view",
    )

    view: MeshView
    context: Context

    def __init__(self, host: Host, cls: type[Actor], address: Address) -> None:
        super().__init__(host, cls, address)
        self.instance: Actor | None = None
        self.interrupt: Interrupt | None = None
        self.failure: BaseException | None = None
        self.begun = 0
        self.times: TimeHistogram | None = None
        self._labels: dict[str, Chain] = {}
        self._handling: Generator[Any, Any, None] | None = None
        self._begun: Any = IDLE  # what the handler waits for that was begun at once
        self._broken: BaseException | None = None  # the failure that this incarnation's last message was

    @property
    def served(self) -> int:
        """One-at-a-time messages begun, over all incarnations. Counted where it costs least, in a local variable."""
        return 0 if self._handling is None else inspect.getgeneratorlocals(self._handling)["served"]

    @property
    def handling(self) -> Any:
        """What the one-at-a-time handler runs in, for those who look where it waits."""
        return self._handling

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
        handling = self._handling
        if handling is None:
            handling = self._handling = cast("Generator[Any, Any, None]", self._handle())
            handling.send(None)
        served = 0
        while self.interrupt is None:
            while queue and queue[0].spec.concurrent and len(self.concurrent) < self.capacity:
                self.begin(queue.popleft())
            if not queue or queue[0].spec.concurrent:
                if self.state is State.DRAINING and not queue and not self.concurrent:
                    return None
                self.host.idle()
                await self._wait()
                waits_for, self._begun = self._begun, IDLE
            else:
                message = queue.popleft()
                while queue and queue[0].spec.concurrent and len(self.concurrent) < self.capacity:
                    self.begin(queue.popleft())
                if self._room:
                    self._admit()
                waits_for = handling.send(message)
                del message
                served += 1
            if waits_for is not IDLE:
                await resume(handling, waits_for)
                waits_for = IDLE  # what it was may hold a result that nobody else needs any more
            if self._broken is not None:
                failure, self._broken = self._broken, None
                return failure
            if served >= TURN:
                served = 0
                await asyncio.sleep(0)
        return self.failure

    @types.coroutine
    def _handle(self) -> Generator[Any, Any, None]:
        """Serve one-at-a-time messages: `send` takes one and gives what its handler waits for, at its end `IDLE`.

        It gives each outcome to the sender; what makes the actor itself fail is left in `_broken`. One generator for
        all messages, because that one can be left and entered without an exception.
        """
        served = next_timed = 0
        clock, labels = self.host.loop.time, self._labels
        while True:
            message: Message = yield IDLE
            if message.deadline is not None and message.deadline <= clock():
                message.fail(self._too_late(message))
                continue
            label = labels.get(message.method)
            if label is None:
                label = labels[message.method] = ((self.id, f"{self.name}.{message.method}"),)
            trace = message.trace
            call = Call(message.chain + label if message.chain else label, message.deadline, trace)
            current_call.set(call)
            if trace is not None:
                trace = traceparent.enter(trace)
            self.running = message
            served += 1
            step: Any = None  # the method, its coroutine, and the value of that
            try:
                step = getattr(self.instance, message.method)
                if isinstance(message, StreamMessage):
                    step = message.produce(step)
                elif message.kwargs:
                    step = step(*message.args, **message.kwargs)
                else:
                    step = step(*message.args)
                if step.__class__ is not CoroutineType:
                    step = step.__await__()
                if served >= next_timed:
                    next_timed = served + (1 if served < ALL_TIMED else STRIDE)
                    step = self._timed(message, step)
                step = yield from step  # pyright: ignore[reportUnknownVariableType]
            except BaseException as error:  # the boundary around user code; `_outcome` says whose each error is
                self._broken = self._outcome(message, error)
            else:
                message.succeed(step)
            finally:
                self.running = None
                call.active = False
                if trace is not None:
                    traceparent.leave(trace)
                if message.cancelled or self.interrupt is not None:
                    forget_cancellation()
                del message, call, step  # while it waits for the next it keeps nothing alive

    @types.coroutine
    def _timed(self, message: Message, handler: Any) -> Generator[Any, Any, Any]:
        """A handler, with its duration recorded; a stream's depends on its reader and is left out."""
        began = perf_counter()
        try:
            return (yield from handler)  # pyright: ignore[reportUnknownVariableType]
        finally:
            if not isinstance(message, StreamMessage):
                if self.times is None:
                    self.times = TimeHistogram()
                self.times.record(perf_counter() - began)

    def serve_at_once(self, message: Message) -> None:
        assert self.task is not None
        assert self._handling is not None
        host = self.host
        turn, loop, task = host.turn, host.loop, self.task
        sender = asyncio.current_task(loop)
        if sender is not turn.owner and not turn.depth:
            turn.owner = sender
            turn.left = BUDGET
        turn.depth += 1
        if sender is not None:
            leave_task(loop, sender)
        enter_task(loop, task)
        try:
            waits_for = self.context.run(self._handling.send, message)
        except BaseException as error:  # only what must end the process comes through
            self._handling = None
            self._broken = error
            self.wake()
            raise
        finally:
            leave_task(loop, task)
            if sender is not None:
                enter_task(loop, sender)
            turn.depth -= 1
        if waits_for is not IDLE:
            self._begun = put_aside(waits_for)
            self.wake()
        elif self._broken is not None or self.interrupt is not None:
            self.wake()

    async def _wait(self) -> None:
        """Wait for a message, for one that was begun at once and now waits for something, or for an interrupt."""
        self._wake = self.host.loop.create_future()
        try:
            await self._wake
        except asyncio.CancelledError:
            if self._begun is IDLE or self.task is None:
                raise
            # Meant for the handler that was begun: what it waits for is to be cancelled, once this task waits for it.
            self.task.uncancel()
            self.task.cancel()
        finally:
            self._wake = None

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
        timed = self.begun < ALL_TIMED or self.begun % STRIDE == 0
        call = Call(message.chain, message.deadline, message.trace)
        current_call.set(call)
        if message.trace is not None:
            traceparent.enter(message.trace)  # the task's own context ends with it
        try:
            if message.deadline is not None and message.deadline <= self.host.loop.time():
                message.fail(self._too_late(message))
                return
            function = getattr(self.instance, message.method)
            if isinstance(message, StreamMessage):
                value = await message.produce(function)
            elif timed:
                value = await self._timed(message, function(*message.args, **message.kwargs).__await__())
            else:
                value = await function(*message.args, **message.kwargs)
        except BaseException as error:  # the boundary around user code; `_outcome` says whose each error is
            self.concurrent.pop(message, None)
            failure = self._outcome(message, error)
        else:
            self.concurrent.pop(message, None)  # before the sender can look
            message.succeed(value)
        finally:
            call.active = False
            if failure is not None:
                self.fail(failure)

    def _concurrent_ended(self, message: Message) -> None:
        self.concurrent.pop(message, None)
        if not message.done:  # cancelled before its first step
            message.fail(asyncio.CancelledError())
        if self._room:
            self._admit()
        if self.queue or self.state is State.DRAINING:
            self.wake()


def forget_cancellation() -> None:
    """Take back the cancellations that were meant for a message or an incarnation, not for the actor's task."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()
