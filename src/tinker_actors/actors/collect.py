"""One ask to many actors: a single collector takes the answers, where a future a member would cost more than the asks.

Members of this process get a message each in their mailbox; those of another process travel in one envelope, and
their answers come back together (see `gather`). Whatever the members' places, each member's messages keep their order.
"""

from __future__ import annotations

import asyncio
import copy
import enum
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tinker_actors.actors.call import Chain, inherited
from tinker_actors.actors.errors import DeadlineExceeded, QuorumError
from tinker_actors.actors.failures import portable
from tinker_actors.actors.inline import give_way
from tinker_actors.actors.mailbox import Mailbox
from tinker_actors.actors.message import Message
from tinker_actors.actors.node import Gone
from tinker_actors.actors.remote import RemoteTarget

if TYPE_CHECKING:
    from tinker_actors.actors.deadlines import CoarseTimer
    from tinker_actors.actors.gather import PendingGather, PendingPart
    from tinker_actors.actors.ref import ActorRef, Options


class Need(enum.Enum):
    """What ends a collection."""

    ALL = "all"  # every answer; the first error ends it
    EACH = "each"  # every answer or error
    SOME = "some"  # so many answers; the others are cancelled


class Missing:
    """Stands for an answer that has not come."""


MISSING = Missing()


class Collector:
    """The answers of a group, by the members' positions.

    Attributes:
        outcomes: a result, an error (its position is then in `failed`), or `MISSING`.
        left: answers that have not come.
        takes_some: the collection may end before all have answered well.
        is_open: answers still count.
        future: resolved once the collection ended, with None or with the error that ended it.
    """

    __slots__ = ("_quorum", "_refs", "failed", "future", "is_open", "left", "need", "outcomes", "takes_some")

    def __init__(self, loop: asyncio.AbstractEventLoop, refs: Sequence[ActorRef], need: Need, quorum: int = 0) -> None:
        self._refs = refs
        self._quorum = quorum
        self.need = need
        self.takes_some = need is Need.SOME
        self.is_open = True
        self.outcomes: list[Any] = [MISSING] * len(refs)
        self.failed: set[int] = set()
        self.left = len(refs)
        self.future: asyncio.Future[None] = loop.create_future()

    def answer(self, index: int, value: Any) -> None:
        """A member's result."""
        if not self.is_open:
            return
        self.outcomes[index] = value
        self.left -= 1
        if not self.left or self.takes_some:
            self.look()

    def fail(self, index: int, error: BaseException) -> None:
        """A member's error."""
        if not self.is_open:
            return
        self.outcomes[index] = error
        self.failed.add(index)
        self.left -= 1
        if self.need is Need.ALL:
            self._end(error)
        elif not self.left or self.takes_some:
            self.look()

    def answers(self) -> dict[ActorRef, Any]:
        """The results that have come, by member, in the group's order."""
        return {
            self._refs[index]: value
            for index, value in enumerate(self.outcomes)
            if value is not MISSING and index not in self.failed
        }

    def expire(self, error: DeadlineExceeded) -> None:
        """Put an error in the place of each answer that has not come."""
        for index, value in enumerate(self.outcomes):
            if value is MISSING:
                self.outcomes[index] = copy.copy(error)

    def look(self) -> None:
        """End the collection if what has come decides it."""
        if not self.takes_some:
            self._end(None)
            return
        total, failed = len(self.outcomes), len(self.failed)
        if total - self.left - failed >= self._quorum:
            self._end(None)
        elif total - failed < self._quorum:
            errors = {self._refs[index].address.name: self.outcomes[index] for index in sorted(self.failed)}
            name, first = next(iter(errors.items()))
            error = QuorumError(
                f"{failed} of {total} members failed, {self._quorum} answers are needed; "
                f"{name}: {type(first).__name__}: {first}",
                errors,
            )
            error.__cause__ = first
            self._end(error)

    def _end(self, error: BaseException | None) -> None:
        self.is_open = False
        if self.future.done():
            return
        if error is None:
            self.future.set_result(None)
        else:
            self.future.set_exception(error)


class Part(Message):
    """A member's share of a group's ask, within this process."""

    __slots__ = ("collector", "index")

    at_once = True

    def __init__(
        self,
        collector: Collector,
        index: int,
        method: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        chain: Chain,
        deadline: float | None,
        trace: str | None,
    ) -> None:
        # The base's assignments again, because this runs once a member.
        self.method = method
        self.args = args
        self.kwargs = kwargs
        self.chain = chain
        self.deadline = deadline
        self.trace = trace
        self.done = False
        self.cancelled = False
        self.collector = collector
        self.index = index

    def succeed(self, value: Any) -> None:
        self.done = True
        collector = self.collector
        if collector.is_open:  # as in `Collector.answer`, because this runs once a member
            collector.outcomes[self.index] = value
            collector.left -= 1
            if not collector.left or collector.takes_some:
                collector.look()

    def fail(self, error: BaseException) -> None:
        self.done = True
        self.collector.fail(self.index, portable(error))


class Collection:
    """One ask to a group: sends it, and takes back what is no longer wanted."""

    def __init__(self, loop: asyncio.AbstractEventLoop, timer: CoarseTimer, options: Options) -> None:
        self._loop = loop
        self._timer = timer
        self._options = options
        self._local: list[tuple[Mailbox, Part]] = []
        self._remote: list[PendingGather | PendingPart] = []

    async def run(
        self,
        refs: Sequence[ActorRef],
        method: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        need: Need,
        quorum: int = 0,
    ) -> Collector:
        """Ask all `refs` and wait until `need` is met; being cancelled cancels all handlers.

        Raises:
            QuorumError: too many members failed for the quorum.
            Exception: with `Need.ALL`, the first member's error.
        """
        chain, due, trace = inherited(self._options.timeout, self._loop)
        collector = Collector(self._loop, refs, need, quorum)
        if not refs:
            return collector
        try:
            self._send(collector, refs, method, args, kwargs, chain, due, trace)
            if collector.future.done():
                await give_way()  # every member was served at once: the loop's other work has its turn now
            bucket = None
            if due is not None:
                bucket = self._timer.add(collector.future, due, f"{method} of a group of {len(refs)}")
            try:
                await collector.future
            finally:
                if bucket is not None:
                    bucket.pop(collector.future, None)
        except DeadlineExceeded as error:
            if need is not Need.EACH:
                raise
            collector.expire(error)
        finally:
            collector.is_open = False
            if collector.left:
                self._cancel()
        return collector

    def _send(
        self,
        collector: Collector,
        refs: Sequence[ActorRef],
        method: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        chain: Chain,
        due: float | None,
        trace: str | None,
    ) -> None:
        wait = self._options.wait is not False
        away: dict[int, list[tuple[int, RemoteTarget]]] = {}
        local = self._local
        for index, ref in enumerate(refs):
            if not collector.is_open:
                return  # decided before all were asked
            target = ref.target
            if isinstance(target, Mailbox):
                part = Part(collector, index, method, args, kwargs, chain, due, trace)
                target.post(part, wait=wait)
                if not part.done:
                    local.append((target, part))
            elif isinstance(target, RemoteTarget):
                away.setdefault(ref.address.node, []).append((index, target))
            elif isinstance(target, Gone):
                collector.fail(index, target.refusal())
        if away:
            from tinker_actors.actors.gather import send_gather

            for members in away.values():
                pending = send_gather(collector, members, method, args, kwargs, chain, due, trace, self._options)
                self._remote.extend(pending)

    def _cancel(self) -> None:
        for mailbox, part in self._local:
            if not part.done:
                mailbox.cancel(part)
        for pending in self._remote:
            if not pending.done:
                pending.cancel()
