"""Groups of actors: one call asks, tells or polls all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tinker_actors.actors.checks import check_count
from tinker_actors.actors.collect import Collection, Members, Need
from tinker_actors.actors.deadlines import CoarseTimer
from tinker_actors.actors.errors import MailboxFull
from tinker_actors.actors.mailbox import Mailbox
from tinker_actors.actors.node import Gone
from tinker_actors.actors.ref import DEFAULT, ActorRef, Options
from tinker_actors.actors.remote import RemoteTarget

if TYPE_CHECKING:
    from tinker_actors.actors.actor import Actor


SAME: Any = object()  # stands for an option that is not given


class Calls:
    """`group.ask` and the like: attribute access names the message."""

    __slots__ = ("_send",)

    def __init__(self, send: Callable[[str, tuple[Any, ...], Mapping[str, Any]], Any]) -> None:
        self._send = send

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(f"{name!r} is private; only public methods are messages")

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._send(name, args, kwargs)

        return call


class Group:
    """Several actors, in whichever processes they are, asked as one.

        group = Group(counters)
        await group.ask.add(1)              # [6, 7, 8]: every answer, in the members' order; or the first error
        await group.settle.add(1)           # the same with errors in their members' places
        await group.first.add(1)            # the first answer
        await group.quorum(2).add(1)        # {counter: 7, other: 8}: the first two
        group.tell.add(1)
        await group.options(timeout=2.0).ask.add(1)

    Order, deadlines, cancellation, full mailboxes and cycles are those of single asks. When an ask ends before all
    have answered (an error, the deadline, enough answers, its own cancellation), the other members' handlers are
    cancelled. Members that share a process share the arguments, which are sent there once.
    """

    __slots__ = ("_members", "_options", "refs")

    refs: tuple[ActorRef, ...]

    def __init__(self, actors: Iterable[Actor | ActorRef], options: Options = DEFAULT) -> None:
        refs: list[ActorRef] = []
        for actor in actors:
            if not isinstance(actor, ActorRef):
                raise TypeError(f"a group is made of refs of actors, got {type(actor).__name__}")
            refs.append(actor)
        self.refs = tuple(refs)
        self._options = options
        self._members: Members | None = None

    def __len__(self) -> int:
        return len(self.refs)

    def __iter__(self) -> Iterator[ActorRef]:
        return iter(self.refs)

    def __repr__(self) -> str:
        return f"<Group of {len(self.refs)} actors>"

    def options(self, *, timeout: float | None = SAME, wait: bool | None = SAME) -> Group:
        """The same group with other sending options; see `Options`. Those not given stay as they are."""
        given = {name: value for name, value in (("timeout", timeout), ("wait", wait)) if value is not SAME}
        group = Group((), replace(self._options, **given))
        group.refs, group._members = self.refs, self._where()
        return group

    @property
    def ask(self) -> Calls:
        """Await every member's result, as a list in the members' order.

        Raises:
            Exception: the first error that a member raised, as an ask of it alone would; the others are cancelled.
        """
        return Calls(self._ask)

    @property
    def settle(self) -> Calls:
        """Await every member's result or error, as a list in the members' order; a passed deadline is such an error."""
        return Calls(self._settle)

    @property
    def first(self) -> Calls:
        """Await the first result; errors count only if nobody answers.

        Raises:
            QuorumError: all members failed.
        """
        return Calls(self._first)

    def quorum(self, count: int) -> Calls:
        """Await the first `count` results, as a dict by member.

        Raises:
            ConfigError: the group has fewer members.
            QuorumError: so many members failed that there can't be `count` results.
        """
        check_count("quorum", count, 1, len(self.refs))

        async def send(method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[ActorRef, Any]:
            collector = await self._collection().run(self._where(), method, args, kwargs, Need.SOME, count)
            return collector.answers()

        return Calls(send)

    @property
    def tell(self) -> Calls:
        """Send and forget, to every member that has room.

        With `options(wait=True)` it is awaited, and waits for room with each.

        Raises:
            MailboxFull: some had no room (the others were told); the message says how many, and names one.
        """
        return Calls(self._tell)

    async def _ask(self, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        return (await self._collection().run(self._where(), method, args, kwargs, Need.ALL)).outcomes

    async def _settle(self, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        return (await self._collection().run(self._where(), method, args, kwargs, Need.EACH)).outcomes

    def _first(self, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Coroutine[Any, Any, Any]:
        if not self.refs:
            raise ValueError("an empty group has no first answer")

        async def send() -> Any:
            collector = await self._collection().run(self._where(), method, args, kwargs, Need.SOME, 1)
            return next(iter(collector.answers().values()))

        return send()

    def _tell(self, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Awaitable[None] | None:
        if self._options.wait:
            return self._tell_when_room(method, args, kwargs)
        away: dict[int, list[RemoteTarget]] = {}
        full: list[MailboxFull] = []
        for ref in self.refs:
            target = ref.target
            if isinstance(target, RemoteTarget):
                away.setdefault(ref.address.node, []).append(target)
                continue
            try:
                target.tell(self._options, method, args, kwargs)
            except MailboxFull as error:
                full.append(error)
        if away:
            from tinker_actors.actors.gather import tell_all

            for targets in away.values():
                full.extend(tell_all(targets, method, args, kwargs))
        if full:
            raise MailboxFull(f"{len(full)} of {len(self.refs)} members had no room for {method}: {full[0]}")
        return None

    async def _tell_when_room(self, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for ref in self.refs:
                    group.create_task(_sent(ref.target.tell(self._options, method, args, kwargs)))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    def _where(self) -> Members:
        if self._members is None:
            self._members = Members(self.refs)
        return self._members

    def _collection(self) -> Collection:
        for ref in self.refs:
            target = ref.target
            if isinstance(target, Mailbox):
                return Collection(target.host.loop, target.host.timer, self._options)
            if isinstance(target, RemoteTarget | Gone):
                return Collection(target.node.loop, target.node.timer, self._options)
        loop = asyncio.get_running_loop()
        return Collection(loop, CoarseTimer(loop), self._options)


async def _sent(told: Awaitable[None] | None) -> None:
    if told is not None:
        await told
