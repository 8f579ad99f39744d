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

from tinker_actors.actors.call import inherited
from tinker_actors.actors.errors import DeadlineExceeded, QuorumError
from tinker_actors.actors.failures import portable
from tinker_actors.actors.inline import give_way
from tinker_actors.actors.mailbox import Mailbox
from tinker_actors.actors.message import Message
from tinker_actors.actors.node import Gone
from tinker_actors.actors.remote import RemoteTarget
from tinker_actors.actors.shares import MISSING, Share, deal

if TYPE_CHECKING:
    from tinker_actors.actors.deadlines import CoarseTimer
    from tinker_actors.actors.gather import PendingGather, PendingPart
    from tinker_actors.actors.ref import ActorRef, Options


class Need(enum.Enum):
    """What ends a collection."""

    ALL = "all"  # every answer; the first error ends it
    EACH = "each"  # every answer or error
    SOME = "some"  # so many answers; the others are cancelled


class Members:
    """Where the actors of a group are. Refs never change that, so a group looks once.

    Attributes:
        refs: all, in the group's order. Positions are those here.
        here: those in this process.
        away: those in others, by process.
        gone: those that had ended before this process could know them.
    """

    __slots__ = ("away", "gone", "here", "refs")

    def __init__(self, refs: Sequence[ActorRef]) -> None:
        self.refs = refs
        self.here: list[tuple[int, Mailbox]] = []
        self.away: dict[int, list[tuple[int, RemoteTarget]]] = {}
        self.gone: list[tuple[int, Gone]] = []
        for index, ref in enumerate(refs):
            target = ref.target
            if isinstance(target, Mailbox):
                self.here.append((index, target))
            elif isinstance(target, RemoteTarget):
                self.away.setdefault(ref.address.node, []).append((index, target))
            elif isinstance(target, Gone):
                self.gone.append((index, target))


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

    def answer_each(self, positions: Sequence[int], values: Sequence[Any]) -> None:
        """The results of several members that have come together."""
        if self.takes_some or not self.is_open:
            for index, value in zip(positions, values, strict=True):
                self.answer(index, value)
            return
        outcomes = self.outcomes
        for index, value in zip(positions, values, strict=True):
            outcomes[index] = value
        self.left -= len(positions)
        if not self.left:
            self.look()

    def fail(self, index: int, error: BaseException) -> None:
        """A member's error."""
        if not self.is_open:
            return
        self.outcomes[index] = error = portable(error)
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


class Collection:
    """One ask to a group: sends it, and takes back what is no longer wanted."""

    def __init__(self, loop: asyncio.AbstractEventLoop, timer: CoarseTimer, options: Options) -> None:
        self._loop = loop
        self._timer = timer
        self._options = options
        self._local: list[tuple[Mailbox, Share]] = []
        self._remote: list[PendingGather | PendingPart] = []

    async def run(
        self,
        members: Members,
        method: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        need: Need,
        quorum: int = 0,
    ) -> Collector:
        """Ask all `members` and wait until `need` is met; being cancelled cancels all handlers.

        Raises:
            QuorumError: too many members failed for the quorum.
            Exception: with `Need.ALL`, the first member's error.
        """
        refs = members.refs
        chain, due, trace = inherited(self._options.timeout, self._loop)
        collector = Collector(self._loop, refs, need, quorum)
        if not refs:
            return collector
        try:
            self._send(collector, members, Message(method, args, kwargs, chain, due, trace))
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

    def _send(self, collector: Collector, members: Members, of: Message) -> None:
        wait = self._options.wait is not False
        for index, target in members.gone:
            collector.fail(index, target.refusal())
        self._local = deal(collector, members.here, of, wait=wait)
        if members.away and collector.is_open:
            from tinker_actors.actors.gather import send_gather

            for there in members.away.values():
                self._remote.extend(send_gather(collector, there, of, wait=wait))

    def _cancel(self) -> None:
        for mailbox, share in self._local:
            if not share.done:
                mailbox.cancel(share)
        for pending in self._remote:
            if not pending.done:
                pending.cancel()
