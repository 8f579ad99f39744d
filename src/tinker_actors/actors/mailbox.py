"""One actor's mailbox and the loop that serves it.

All of an actor's one-at-a-time messages are awaited inline in one task, which starts with the first message: a task
a message would cost more than everything else here. Only `@concurrent` messages get a task each.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import deque
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any

from tinker_actors.actors.actor import Actor, Kind, messages_of
from tinker_actors.actors.call import Call, Chain, current_call, inherited
from tinker_actors.actors.errors import (
    ActorDiedError,
    ActorFailure,
    ActorStoppedError,
    AskCycleError,
    DeadlineExceeded,
    MailboxFull,
)
from tinker_actors.actors.message import LocalAsk, LocalTell, Message, StreamMessage
from tinker_actors.actors.ref import ActorRef, Address, Options
from tinker_actors.actors.stream import LocalStream, Stream

if TYPE_CHECKING:
    from tinker_actors.actors.host import Host
    from tinker_actors.actors.view import MeshView

logger = logging.getLogger(__name__)

TURN = 256  # messages served before other tasks of the loop get their turn


class State(enum.Enum):
    """Where an actor is in its life. It takes messages until it is DRAINING."""

    STARTING = 1
    RUNNING = 2
    RESTARTING = 3
    DRAINING = 4
    ENDED = 5


class Interrupt(enum.Enum):
    """Why the serving loop must end."""

    EXIT = 1  # the actor asked for its own end
    FAIL = 2  # a concurrent message or a child failed it
    KILL = 3  # stopped without draining


class Cell:
    """A mailbox, the messages in progress and the actor object of the present incarnation."""

    __slots__ = (
        "_labels",
        "_room",
        "_running",
        "_wake",
        "capacity",
        "cls",
        "concurrent",
        "failure",
        "host",
        "id",
        "instance",
        "interrupt",
        "life",
        "messages",
        "name",
        "queue",
        "reason",
        "ref",
        "state",
        "task",
        "view",
    )

    life: Any  # the Lifecycle that starts, restarts and ends this cell
    view: MeshView

    def __init__(self, host: Host, cls: type[Actor], address: Address) -> None:
        self.host = host
        self.cls = cls
        self.id = address.id
        self.name = address.name
        self.capacity = address.mailbox
        self.messages = messages_of(cls)
        self.ref = ActorRef(address, self)
        self.queue: deque[Message] = deque()
        self.concurrent: dict[Message, asyncio.Task[None]] = {}
        self.state = State.STARTING
        self.reason: BaseException | None = None
        self.failure: BaseException | None = None
        self.interrupt: Interrupt | None = None
        self.instance: Actor | None = None
        self.task: asyncio.Task[None] | None = None
        self._labels: dict[str, Chain] = {}
        self._running: Message | None = None
        self._wake: asyncio.Future[None] | None = None
        self._room: deque[asyncio.Future[None]] = deque()

    # What a ref in this process calls

    async def ask(self, options: Options, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Put an ask in the mailbox and await its outcome; being cancelled cancels the handler."""
        host = self.host
        chain, due = inherited(options.timeout, host.loop.time())
        message = LocalAsk(method, args, kwargs, chain, due)
        future = message.future = host.loop.create_future()
        self.post(message, wait=options.wait is not False)
        if due is None:
            try:
                return await future
            finally:
                if not message.done:
                    self.cancel(message)
        tick = host.timer.add(future, due, f"{self.name}.{method}")
        try:
            return await future
        finally:
            host.timer.discard(future, tick)
            if not message.done:
                self.cancel(message)

    def tell(
        self, options: Options, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Awaitable[None] | None:
        """Put a tell in the mailbox; with `wait=True`, an awaitable that first waits for room."""
        message = LocalTell(method, args, kwargs, (), None)
        message.dropped = self.host.dead_letter
        if options.wait:
            return self._tell_when_room(message)
        if self.depth >= self.capacity and self.state is not State.ENDED:
            raise self.full()
        self.post(message)
        return None

    def stream(self, options: Options, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Stream:
        """An iterator whose first item sends the call."""
        chain, due = inherited(options.timeout, self.host.loop.time())

        def begin(reader: Stream) -> LocalStream:
            message = LocalStream(method, args, kwargs, chain, due)
            message.connect(reader, self.cancel)
            self.post(message, wait=options.wait is not False)
            return message

        return Stream(
            begin,
            loop=self.host.loop,
            timer=self.host.timer,
            due=due,
            buffer=options.buffer,
            what=f"{self.name}.{method}",
        )

    # The mailbox

    @property
    def depth(self) -> int:
        """Messages that wait, and concurrent ones that run."""
        return len(self.queue) + len(self.concurrent)

    def full(self) -> MailboxFull:
        """The refusal of a sender that doesn't wait."""
        return MailboxFull(f"the mailbox of {self.name} holds {self.depth} messages, its size is {self.capacity}")

    def post(self, message: Message, *, wait: bool = True) -> None:
        """Take `message`, or fail it at once with the reason why not."""
        method = self.messages.get(message.method)
        if method is None or method.kind is not message.kind:
            message.fail(self._not_a_message(message))
            return
        if self.state is State.DRAINING or self.state is State.ENDED:
            message.fail(self.refusal())
            return
        inside = False
        for step, (actor, _) in enumerate(message.chain):
            if actor == self.id:
                if not method.concurrent:
                    message.fail(self._cycle(message, step))
                    return
                inside = True
        if not wait and self.depth >= self.capacity:
            message.fail(self.full())
            return
        message.spec = method
        # One asked by this actor's own handler must not wait behind messages that wait for that handler.
        if (
            method.concurrent
            and self.state is State.RUNNING
            and (inside or (not self.queue and len(self.concurrent) < self.capacity and self.task is not None))
        ):
            self._begin(message)
            return
        self.queue.append(message)
        wake = self._wake
        if wake is not None:
            self._wake = None
            if not wake.done():
                wake.set_result(None)
        elif self.task is None and self.state is State.RUNNING:
            self.life.run()

    def cancel(self, message: Message) -> None:
        """The sender gave up: drop the message, or cancel its handler."""
        if message.done:
            return
        message.cancelled = True
        task = self.concurrent.get(message)
        if task is not None:
            task.cancel()
        elif message is self._running:
            if self.task is not None:
                self.task.cancel()
        elif message in self.queue:
            self.queue.remove(message)
            self._admit()
            message.fail(asyncio.CancelledError())

    def refusal(self) -> ActorDiedError | ActorStoppedError:
        """Why this actor takes no messages."""
        if self.reason is None:
            return ActorStoppedError(f"actor {self.name} was stopped")
        error = ActorDiedError(f"actor {self.name} died: {type(self.reason).__name__}: {self.reason}")
        error.__cause__ = self.reason
        return error

    def request_exit(self) -> None:
        """End after the present message."""
        if self.interrupt is None:
            self.interrupt = Interrupt.EXIT
            self.wake()

    def fail(self, error: BaseException) -> None:
        """Make this incarnation fail from outside its one-at-a-time handler."""
        if self.interrupt is None:
            self.failure = error
            self._break(Interrupt.FAIL)

    def kill(self) -> None:
        """End this incarnation without serving what waits."""
        self._break(Interrupt.KILL)

    def wake(self) -> None:
        """Let the serving loop look again."""
        wake, self._wake = self._wake, None
        if wake is not None and not wake.done():
            wake.set_result(None)

    def flush(self, error: BaseException) -> None:
        """Fail everything that waits."""
        while self.queue:
            self.queue.popleft().fail(error)
        self._admit()

    def _break(self, interrupt: Interrupt) -> None:
        self.interrupt = interrupt
        if self._running is not None and self.task is not None:
            if asyncio.current_task() is not self.task:
                self.task.cancel()
        else:
            self.wake()

    def _not_a_message(self, message: Message) -> Exception:
        method = self.messages.get(message.method)
        name = f"{self.cls.__qualname__}.{message.method}"
        if method is None:
            return AttributeError(f"{name} is not a message: no public coroutine method or generator of that name")
        if method.kind is Kind.STREAM:
            return TypeError(f"{name} is a stream: iterate over ref.stream.{message.method}(...)")
        return TypeError(f"{name} gives one reply: await ref.{message.method}(...)")

    def _cycle(self, message: Message, start: int) -> AskCycleError:
        cycle = (*(label for _, label in message.chain[start:]), f"{self.name}.{message.method}")
        return AskCycleError(f"an ask would wait for itself: {' -> '.join(cycle)}", cycle)

    async def _tell_when_room(self, message: Message) -> None:
        while (self.depth >= self.capacity or self._room) and self.state is not State.ENDED:
            waiter = self.host.loop.create_future()
            self._room.append(waiter)
            try:
                await waiter
            finally:
                if waiter in self._room:
                    self._room.remove(waiter)
            if self.depth < self.capacity:
                break
        self.post(message)

    def _admit(self) -> None:
        """Let as many waiting tells in as there is room for."""
        room = len(self._room) if self.state is State.ENDED else self.capacity - self.depth
        while self._room and room > 0:
            waiter = self._room.popleft()
            if not waiter.done():
                waiter.set_result(None)
                room -= 1

    # Serving

    async def serve(self) -> BaseException | None:
        """Serve until interrupted, or until drained; the failure that ended this incarnation, or None."""
        queue = self.queue
        served = 0
        while self.interrupt is None:
            while queue and queue[0].spec.concurrent and len(self.concurrent) < self.capacity:
                self._begin(queue.popleft())
            if not queue or queue[0].spec.concurrent:
                if self.state is State.DRAINING and not queue and not self.concurrent:
                    return None
                self.host.idle()
                self._wake = self.host.loop.create_future()
                try:
                    await self._wake
                finally:
                    self._wake = None
                continue
            message = queue.popleft()
            while queue and queue[0].spec.concurrent and len(self.concurrent) < self.capacity:
                self._begin(queue.popleft())
            if self._room:
                self._admit()
            failure = await self._serve_one(message)
            if failure is not None:
                return failure
            served += 1
            if served % TURN == 0:
                await asyncio.sleep(0)
        return self.failure

    async def _serve_one(self, message: Message) -> BaseException | None:
        if message.deadline is not None and message.deadline <= self.host.loop.time():
            message.fail(DeadlineExceeded(f"{self.name}.{message.method} was not begun by its deadline"))
            return None
        name = message.method
        label = self._labels.get(name)
        if label is None:
            label = self._labels[name] = ((self.id, f"{self.name}.{name}"),)
        call = Call(message.chain + label if message.chain else label, message.deadline)
        current_call.set(call)
        self._running = message
        try:
            return await self._execute(message)
        finally:
            self._running = None
            call.active = False
            if message.cancelled or self.interrupt is not None:
                _forget_cancellation()

    async def _execute(self, message: Message) -> BaseException | None:
        """Run the handler and give its outcome to the sender; returns what makes the actor itself fail."""
        try:
            function = getattr(self.instance, message.method)
            if isinstance(message, StreamMessage):
                value = await message.produce(function)
            else:
                value = await function(*message.args, **message.kwargs)
        except asyncio.CancelledError as error:
            if message.cancelled:
                message.fail(error)
            elif self.interrupt is Interrupt.KILL:
                message.fail(ActorStoppedError(f"actor {self.name} was stopped while it served {message.method}"))
            elif self.interrupt is Interrupt.FAIL:
                message.fail(self._died(self.failure))
            else:
                message.fail(error)  # the handler cancelled itself; that is its outcome, not ours
            return None
        except ActorFailure as error:
            message.fail(self._died(error))
            return error
        except Exception as error:  # the boundary around user code: an ask's error belongs to the asker
            message.fail(error)
            return error if message.is_tell else None
        except BaseException as error:  # SystemExit and the like: user code wants this process's end; only its own ends
            if isinstance(error, KeyboardInterrupt):
                message.fail(error)
                raise
            message.fail(self._died(error))
            return error
        message.succeed(value)
        return None

    def _died(self, error: BaseException | None) -> ActorDiedError:
        died = ActorDiedError(f"actor {self.name} failed: {type(error).__name__}: {error}")
        died.__cause__ = error
        return died

    def _begin(self, message: Message) -> None:
        host = self.host
        task = host.loop.create_task(self._serve_concurrently(message), context=host.context.copy())
        self.concurrent[message] = task

    async def _serve_concurrently(self, message: Message) -> None:
        failure = None
        try:
            if message.deadline is not None and message.deadline <= self.host.loop.time():
                message.fail(DeadlineExceeded(f"{self.name}.{message.method} was not begun by its deadline"))
                return
            call = Call(message.chain, message.deadline)
            current_call.set(call)
            try:
                failure = await self._execute(message)
            finally:
                call.active = False
        finally:
            self.concurrent.pop(message, None)
            if not message.done:  # cancelled before its first step
                message.fail(asyncio.CancelledError())
            if failure is not None:
                self.fail(failure)
            if self._room:
                self._admit()
            if self.queue or self.state is State.DRAINING:
                self.wake()


def _forget_cancellation() -> None:
    """Take back the cancellations that were meant for one message, not for the actor's task."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()
