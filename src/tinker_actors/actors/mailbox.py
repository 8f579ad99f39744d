"""One actor's mailbox: what a ref in its process calls, and what waits."""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from contextvars import Context
from typing import TYPE_CHECKING, Any

from tinker_actors.actors import traceparent
from tinker_actors.actors.actor import Actor, Kind, messages_of, plain_messages_of
from tinker_actors.actors.call import current_call, inherited, inherited_trace
from tinker_actors.actors.deadlines import room
from tinker_actors.actors.errors import ActorDiedError, ActorStoppedError, AskCycleError, MailboxFull
from tinker_actors.actors.inline import BUDGET, DEPTH, IDLE, give_way, serve_at_once
from tinker_actors.actors.message import LocalAsk, LocalTell, Message
from tinker_actors.actors.ref import ActorRef, Address, Options
from tinker_actors.actors.stream import LocalStream, Stream

if TYPE_CHECKING:
    from tinker_actors.actors.host import Host

_NOTHING: Mapping[str, Any] = {}


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


class Mailbox:
    """The messages of one actor, waiting and in progress; `Cell` serves them.

    Attributes:
        queue: messages that wait, oldest first.
        running: the one-at-a-time message in progress.
        concurrent: the tasks of the concurrent messages in progress.
        task: serves this mailbox; made by `life` when first needed.
        context: what `task` runs in, from when there is one.
        waiter: what `task` waits for while it has nothing to do: the actor runs, neither drained nor interrupted.
        handling: what the one-at-a-time handlers run in, see `Cell`; None before the first.
        serve_one: gives `handling` a message, in `context`; from when there is a `waiter`.
        waits_for: what the handler waits for that was begun at once and that `task` has not taken over.
        interrupt: why serving is to end.
        broken: the failure that this incarnation's last message was.
        reason: why the actor ended, or why its last incarnation did.
    """

    __slots__ = (
        "_room",
        "broken",
        "capacity",
        "cls",
        "concurrent",
        "context",
        "handling",
        "host",
        "id",
        "interrupt",
        "life",
        "messages",
        "name",
        "plain",
        "queue",
        "reason",
        "ref",
        "running",
        "serve_one",
        "state",
        "task",
        "waiter",
        "waits_for",
    )

    context: Context
    serve_one: Callable[[Message], Any]
    life: Any  # the Lifecycle that starts, restarts and ends this actor

    def __init__(self, host: Host, cls: type[Actor], address: Address) -> None:
        self.host = host
        self.cls = cls
        self.id = address.id
        self.name = address.name
        self.capacity = address.mailbox
        self.messages = messages_of(cls)
        self.plain = plain_messages_of(cls)
        self.ref = ActorRef(address, self)
        self.queue: deque[Message] = deque()
        self.running: Message | None = None
        self.concurrent: dict[Message, asyncio.Task[None]] = {}
        self.state = State.STARTING
        self.reason: BaseException | None = None
        self.task: asyncio.Task[None] | None = None
        self.waiter: asyncio.Future[None] | None = None
        self.handling: Generator[Any, Any, None] | None = None
        self.waits_for: Any = IDLE
        self.broken: BaseException | None = None
        self.interrupt: Interrupt | None = None
        self._room: deque[tuple[Message, asyncio.Future[None]]] = deque()

    def begin(self, message: Message) -> None:
        """Start a concurrent message."""
        raise NotImplementedError

    # What a ref in this process calls

    def asks(self, options: Options, method: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        """What puts asks in the mailbox and awaits their outcome; being cancelled cancels the handler."""
        timeout, wait = options.timeout, options.wait is not False
        plain = method in self.plain and (timeout is None or timeout > 0)

        async def ask(*args: Any, **kwargs: Any) -> Any:
            host = self.host
            if current_call.get() is not None or traceparent.bridge is not None:
                message = LocalAsk(method, args, kwargs, *inherited(timeout, host.loop))
                self.post(message, wait)
                return await self.outcome_of(message)
            due = None if timeout is None else host.clock() + timeout
            if not plain or self.waiter is None or self.running is not None or self.queue or self.concurrent:
                message = LocalAsk(method, args, kwargs, (), due, None)
                self.post(message, wait)
                return await self.outcome_of(message)
            # As `post` would, without its other questions.
            turn = host.turn
            message = turn.spare
            if message is None:
                message = LocalAsk(method, args, kwargs, (), due, None)
            else:
                turn.spare = None
                message.method = method
                message.args = args
                message.kwargs = kwargs
                message.deadline = due
            serve_at_once(self, message)
            if not message.done or message.error is not None or turn.left <= 1:
                return await self.outcome_of(message)
            turn.left -= 1
            value = message.value
            message.args = ()
            message.kwargs = _NOTHING
            message.value = None
            message.done = False
            turn.spare = message
            return value

        return ask

    async def outcome_of(self, message: LocalAsk) -> Any:
        """Await the outcome of an ask that was posted."""
        host = self.host
        if message.done:
            turn = host.turn
            turn.left -= 1
            if turn.left <= 0:
                turn.left = BUDGET
                await give_way()
            if message.error is not None:
                raise message.taken_error()
            return message.value
        message.in_hand = False
        future = message.future = host.loop.create_future()
        due = message.deadline
        bucket = None if due is None else host.timer.add(future, due, (self.name, message.method))
        try:
            return await future
        finally:
            if bucket is not None:
                bucket.pop(future, None)
            if not message.done:
                self.cancel(message)

    def tell(
        self, options: Options, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Awaitable[None] | None:
        """Put a tell in the mailbox; with `wait=True`, an awaitable that first waits for room."""
        message = LocalTell(method, args, kwargs, (), None, inherited_trace())
        message.dropped = self.host.dead_letter
        if options.wait:
            return self._tell_when_room(message, options.timeout)
        if self.depth >= self.capacity and self.state is not State.ENDED:
            raise self.full()
        self.post(message)
        return None

    def stream(self, options: Options, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Stream:
        """An iterator whose first item sends the call."""
        chain, due, trace = inherited(options.timeout, self.host.loop)

        def begin(reader: Stream) -> LocalStream:
            message = LocalStream(method, args, kwargs, chain, due, trace)
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

    @property
    def in_progress(self) -> int:
        """Messages that are being served."""
        return len(self.concurrent) + (self.running is not None)

    def full(self) -> MailboxFull:
        """The refusal of a sender that doesn't wait."""
        return MailboxFull(f"the mailbox of {self.name} holds {self.depth} messages, its size is {self.capacity}")

    def post(self, message: Message, wait: bool = True) -> None:
        """Take `message`, or fail it at once with the reason why not."""
        wake = self.waiter
        if (
            wake is not None
            and self.running is None
            and not self.queue
            and message.method in self.plain
            and message.at_once
            and message.trace is None  # a trace context is entered and left in the actor's own task
            and wait
            and (not message.chain or all(actor != self.id for actor, _ in message.chain))
            and self.host.turn.depth < DEPTH
            and (message.deadline is None or message.deadline > self.host.clock())
        ):
            serve_at_once(self, message)
            return
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
            self.begin(message)
            return
        self.queue.append(message)
        if wake is not None:
            self.waiter = None
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
        elif message is self.running:
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

    def wake(self) -> None:
        """Let the serving loop look again."""
        wake, self.waiter = self.waiter, None
        if wake is not None and not wake.done():
            wake.set_result(None)

    def flush(self) -> None:
        """Refuse everything that waits."""
        while self.queue:
            self.queue.popleft().fail(self.refusal())
        self._admit()

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

    async def _tell_when_room(self, message: Message, timeout: float | None) -> None:
        if self.state is State.ENDED or (self.depth < self.capacity and not self._room):
            self.post(message)
            return
        waiter = self.host.loop.create_future()
        place = (message, waiter)
        self._room.append(place)
        try:
            await room(waiter, timeout, f"{self.name}.{message.method}")
        finally:
            if waiter.cancelled() and place in self._room:
                self._room.remove(place)

    def _admit(self) -> None:
        """Post as many of the waiting tells as there is room for, in their order, before anyone else is."""
        while self._room and (self.depth < self.capacity or self.state is State.ENDED):
            message, waiter = self._room.popleft()
            if not waiter.done():
                self.post(message)
                waiter.set_result(None)
