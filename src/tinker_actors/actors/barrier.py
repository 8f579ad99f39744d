"""Barriers: actors and programs in any process that go on together, phase after phase.

One hub on node 0 knows who has arrived. Each process gathers what arrives in one turn of its event loop into one
message to the hub, whose reply releases them all; so a phase costs about one message a process, whatever the number
of parties. Whoever waits is an ask of its process to the hub: the end of either reaches the other at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from tinker_actors.actors.actor import Actor, concurrent
from tinker_actors.actors.barrier_site import BarrierSite
from tinker_actors.actors.errors import BarrierError
from tinker_actors.actors.events import Event, Terminated
from tinker_actors.actors.mailbox import Mailbox
from tinker_actors.actors.ref import ActorRef
from tinker_actors.actors.remote import RemoteTarget
from tinker_actors.actors.rendezvous import Rendezvous
from tinker_actors.errors import ConfigError

if TYPE_CHECKING:
    from tinker_actors.actors.directory import Directory
    from tinker_actors.actors.node import Node

Party = Actor | ActorRef | str
"""Who waits at a barrier: an actor, or anything else under a name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BarrierState:
    """Where a barrier stands."""

    phase: int  # counts from 0
    parties: tuple[str, ...]  # names, in the order in which they joined
    missing: tuple[str, ...]  # of those, the ones that have not arrived in this phase
    broken: str | None  # why it broke, if it did


@dataclass(frozen=True)
class Barrier:
    """A handle to a barrier, to be sent wherever its parties are. Made by `mesh.barrier`.

        barrier = await mesh.barrier([*workers, "driver"], timeout=60.0)
        # in each worker, an actor that was given the barrier:
        await barrier.arrive(self)
        # in the program:
        phase = await barrier.arrive("driver")

    Attributes:
        ref: the hub. The barrier ends with it: `mesh.stop(barrier.ref)`, or the end of the actor that made it.
    """

    ref: ActorRef

    async def arrive(self, party: Party, phase: int | None = None, *, timeout: float | None = None) -> int:
        """Wait until all parties have arrived; returns the number of the phase that this ended.

        Args:
            party: who arrives. An actor passes `self`.
            phase: the phase that is meant; a late arrival for one that has ended is then refused.
            timeout: seconds until `DeadlineExceeded`; an ambient deadline can only shorten it.

        Raises:
            BarrierBrokenError: a party died, was cancelled or ran out of time, or `break_` was called, now or before.
            DeadlineExceeded: this arrival's own deadline passed, which breaks the barrier for the others.
            BarrierError: not a party, arrived already, or another phase than `phase` is going on.
        """
        return await self._site.arrive(_key(party), phase, timeout)

    async def join(self, party: Party) -> None:
        """Add a party, from the present phase on, while others wait too."""
        await self._hub.join(_member(party))

    async def leave(self, party: Party) -> None:
        """Remove a party, from the present phase on; if all others have arrived, that ends the phase."""
        await self._hub.leave(_key(party))

    async def break_(self, cause: str, reason: Exception | None = None) -> None:
        """Wake all who wait, and refuse all who arrive, with a `BarrierBrokenError` until `reset`."""
        await self._hub.abort(cause, reason)

    async def reset(self) -> int:
        """Begin a new phase with the present parties, whole again; returns its number."""
        return await self._hub.reset()

    async def state(self) -> BarrierState:
        """Where it stands."""
        return await self._hub.state()

    @property
    def _hub(self) -> Any:
        return self.ref

    @cached_property
    def _site(self) -> BarrierSite:
        target = self.ref.target
        if isinstance(target, Mailbox):
            return BarrierSite.of(cast("Node", target.host), self.ref)
        if isinstance(target, RemoteTarget):
            return BarrierSite.of(target.node, self.ref)
        raise BarrierError(f"the barrier {self.ref.address.name} has ended")


class BarrierHub(Actor):
    """Knows who has arrived. It lives on node 0, where it hears at once what becomes of the parties."""

    __actor_drains__ = False

    def __init__(self, parties: list[ActorRef | str], timeout: float | None) -> None:
        self._names: dict[int | str, str] = {}
        self._refs: dict[int | str, ActorRef] = {}
        self._waiting: dict[tuple[int, int, int], int] = {}
        self._meeting = Rendezvous[int | str]((), timeout=timeout, describe=self._name)
        self._ears = _Ears(self)
        for party in parties:
            self._join(party)

    @concurrent
    async def arrive(
        self, batch: tuple[int, int, int], keys: list[int | str], phase: int | None
    ) -> tuple[int, dict[int | str, BarrierError]]:
        """Wait with parties of one process; the phase that ended and {}, or at once what refuses some of them."""
        meeting = self._meeting
        refused = {key: error for key in keys if (error := meeting.refusal(key, phase)) is not None}
        if refused and meeting.broken is None:
            return meeting.phase, refused
        waiter = meeting.arrive(keys)
        self._waiting[batch] = meeting.phase
        try:
            return await waiter, {}
        finally:
            del self._waiting[batch]
            if waiter.cancelled():  # their process has ended, or this hub is ending
                meeting.break_(f"{', '.join(map(self._name, keys))} can't be reached any more")

    @concurrent
    async def withdraw(self, batch: tuple[int, int, int], key: int | str, why: str) -> None:
        """A party no longer waits; that breaks the phase, if it still goes on."""
        if self._waiting.get(batch) == self._meeting.phase:
            self._meeting.break_(f"{self._name(key)} {why}")

    @concurrent
    async def join(self, party: ActorRef | str) -> None:
        """See `Barrier.join`."""
        self._join(party)

    @concurrent
    async def leave(self, key: int | str) -> None:
        """See `Barrier.leave`."""
        self._meeting.leave(key)
        ref = self._refs.pop(key, None)
        if ref is not None:
            self._directory.unlisten(ref, self._ears)

    @concurrent
    async def abort(self, cause: str, reason: Exception | None) -> None:
        """See `Barrier.break_`."""
        self._meeting.break_(cause, reason)

    @concurrent
    async def reset(self) -> int:
        """See `Barrier.reset`."""
        self._meeting.reset()
        return self._meeting.phase

    @concurrent
    async def state(self) -> BarrierState:
        """See `Barrier.state`."""
        meeting = self._meeting
        return BarrierState(
            phase=meeting.phase,
            parties=tuple(map(self._name, meeting.parties)),
            missing=tuple(map(self._name, meeting.missing)),
            broken=None if meeting.broken is None else str(meeting.broken),
        )

    async def on_stop(self) -> None:
        self._meeting.break_("it was stopped")

    def heard(self, event: Event) -> None:
        """A party's end breaks the barrier, its restart only a phase in which others wait for it."""
        if isinstance(event, Terminated):
            self._broke(event.ref, "was stopped" if event.reason is None else "died", event.reason)
        else:
            self.lost(event.ref, event.reason)

    def lost(self, ref: ActorRef, reason: BaseException | None) -> None:
        """A party failed, but comes back."""
        if self._meeting.is_awaited:
            self._broke(ref, "failed", reason)

    def _broke(self, ref: ActorRef, what: str, reason: BaseException | None) -> None:
        cause = f"{ref.address.name} {what}"
        if reason is not None:
            cause += f": {type(reason).__name__}: {reason}"
        self._meeting.break_(cause, reason if isinstance(reason, Exception) else None)

    def _join(self, party: ActorRef | str) -> None:
        key = _key(party)
        self._names[key] = party if isinstance(party, str) else party.address.name
        self._meeting.join(key)
        if isinstance(party, ActorRef):
            self._refs[key] = party
            self._directory.listen(party, self._ears)

    def _name(self, key: int | str) -> str:
        return self._names.get(key, f"actor {key}")

    @property
    def _directory(self) -> Directory:
        return cast("Directory", cast("Node", self.__actor_cell__.host).supervisor)


class _Ears:
    """Hears what becomes of a hub's parties."""

    def __init__(self, hub: BarrierHub) -> None:
        self._hub = hub

    def put(self, event: Event) -> None:
        self._hub.heard(event)

    def lost(self, ref: ActorRef, error: Exception) -> None:
        self._hub.lost(ref, error)


def members(parties: Iterable[Party]) -> list[ActorRef | str]:
    """Parties as a hub takes them."""
    if isinstance(parties, str):
        raise ConfigError(f"parties are several actors and names, such as [{parties!r}]; got {parties!r}")
    return [_member(party) for party in parties]


def _member(party: Party) -> ActorRef | str:
    if isinstance(party, Actor):
        return party.ref
    if not isinstance(party, ActorRef | str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"a party is an actor or a name; got {party!r}")
    return party


def _key(party: Party) -> int | str:
    member = _member(party)
    return member if isinstance(member, str) else member.address.id
