"""One message on its way through a mailbox, and what becomes of its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from tinker_actors.actors.actor import Kind, Method
from tinker_actors.actors.failures import portable

if TYPE_CHECKING:
    from tinker_actors.actors.call import Chain


class Message:
    """What a mailbox holds. Exactly one of `succeed` and `fail` is called, once.

    Attributes:
        spec: the method's declaration, set when the mailbox takes the message.
        done: an outcome was given.
        cancelled: the sender no longer wants the outcome.
        trace: the `traceparent` that came with it.
        in_hand: whoever posted it looks for its outcome itself: a result goes into `value`, and `succeed` isn't called.
    """

    __slots__ = ("args", "cancelled", "chain", "deadline", "done", "kwargs", "method", "spec", "trace")

    kind: ClassVar[Kind] = Kind.ASK
    is_tell: ClassVar[bool] = False
    at_once: ClassVar[bool] = False  # may be served in the turn of whoever posts it
    in_hand: bool = False
    value: Any
    spec: Method

    def __init__(
        self,
        method: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        chain: Chain,
        deadline: float | None,
        trace: str | None,
    ) -> None:
        self.method = method
        self.args = args
        self.kwargs = kwargs
        self.chain = chain
        self.deadline = deadline
        self.trace = trace
        self.done = False
        self.cancelled = False

    def succeed(self, value: Any) -> None:
        """Give the handler's result to the sender."""
        raise NotImplementedError

    def fail(self, error: BaseException) -> None:
        """Give an error to the sender."""
        raise NotImplementedError

    def raised(self, error: BaseException) -> None:
        """Give what the handler raised to the sender."""
        self.fail(error)


class LocalAsk(Message):
    """An ask from this process. Its sender makes the future only if there is no outcome yet."""

    __slots__ = ("error", "future", "in_hand", "value")

    at_once = True

    def __init__(
        self,
        method: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        chain: Chain,
        deadline: float | None,
        trace: str | None,
    ) -> None:
        # The base's assignments again, because this runs once an ask.
        self.method = method
        self.args = args
        self.kwargs = kwargs
        self.chain = chain
        self.deadline = deadline
        self.trace = trace
        self.done = False
        self.cancelled = False
        self.in_hand = True
        self.future: asyncio.Future[Any] | None = None
        self.error: Exception | None = None

    def succeed(self, value: Any) -> None:
        self.done = True
        if self.future is None:
            self.value = value  # its sender has not looked yet
        elif not self.future.done():
            self.future.set_result(value)

    def fail(self, error: BaseException) -> None:
        self.done = True
        if self.future is None:
            self.error = portable(error)
        elif not self.future.done():
            self.future.set_exception(portable(error))

    def taken_error(self) -> Exception:
        """The error of an ask that failed before its sender made a future; the message forgets it."""
        assert self.error is not None
        error, self.error = self.error, None  # its traceback will hold the frame that holds this message
        return error


class LocalTell(Message):
    """A tell from this process; a refusal is a dead letter."""

    __slots__ = ("dropped",)

    is_tell = True
    dropped: Callable[..., None]

    def succeed(self, value: Any) -> None:
        self.done = True

    def fail(self, error: BaseException) -> None:
        self.done = True
        self.dropped(self, error)

    def raised(self, error: BaseException) -> None:
        self.done = True
        self.dropped(self, error, begun=True)


class StreamMessage(Message):
    """A stream: the handler's items go to a sink while the reader's credit lasts."""

    __slots__ = ("_credit_waiter", "credits")

    kind = Kind.STREAM

    def __init__(
        self,
        method: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        chain: Chain,
        deadline: float | None,
        trace: str | None,
    ) -> None:
        super().__init__(method, args, kwargs, chain, deadline, trace)
        self.credits = 0
        self._credit_waiter: asyncio.Future[None] | None = None

    def put(self, item: Any) -> None:
        """Send one item to the reader."""
        raise NotImplementedError

    def grant(self, count: int) -> None:
        """The reader has room for `count` more items."""
        self.credits += count
        waiter = self._credit_waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def produce(self, function: Callable[..., Any]) -> None:
        """Run the generator `function`, never further ahead than the reader's credit."""
        generator = function(*self.args, **self.kwargs)
        try:
            while True:
                while self.credits <= 0:
                    self._credit_waiter = asyncio.get_running_loop().create_future()
                    try:
                        await self._credit_waiter
                    finally:
                        self._credit_waiter = None
                try:
                    item = await anext(generator)
                except StopAsyncIteration:
                    return
                self.credits -= 1
                self.put(item)
        finally:
            await generator.aclose()
