"""Cycles of asks that no single chain of callers shows: handlers that wait for each other's mailboxes.

A chain that would close is refused when the ask is posted (see `mailbox`). What remains are asks that cross: A's
handler asks B while B's asks A, each as the last link of a chain of its own. Nothing is recorded for that; a coarse
sweep looks for actors with messages waiting behind a handler that has itself been waiting for an ask for a while. From
there a walk follows the waits, from process to process: an ask waits for the handler that serves it, or for the one
that it waits behind, and that handler for the one ask that it awaits. No handler awaits more than one, or else it
isn't followed, so a walk that comes back to where it began has found a deadlock (edge chasing: K. M. Chandy, J. Misra
and L. M. Haas, "Distributed Deadlock Detection", ACM TOCS 1(2), 1983; with one wait for each: D. P. Mitchell and
M. J. Merritt, "A Distributed Algorithm for Deadlock Detection and Resolution", PODC 1984).

A walk takes time, and an ask may be given up behind its back. Therefore it is walked a second time: asks that waited
at both times waited in between, so all of them did at the moment between the two walks. In each cycle only the actor
with the highest id decides. The ask that is refused is the one whose deadline would be the first to pass, so that
nobody loses an answer that could have come; without deadlines it is the deciding actor's own.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tinker_actors.actors import envelope
from tinker_actors.actors.errors import AskCycleError, CodecError
from tinker_actors.actors.remote import RemoteTarget
from tinker_actors.actors.waits import Blocked, Holder, blocked_in, holder, holder_of, is_behind

if TYPE_CHECKING:
    from tinker_actors.actors.cell import Cell
    from tinker_actors.actors.message import Message
    from tinker_actors.actors.node import Node
    from tinker_actors.actors.peer import Peer

SEARCH, CONFIRM, REFUSE = 1, 2, 3  # what a walk is for
MAX_HOPS = 1024  # handlers on a walk
BUDGET = 0.002  # seconds that a sweep walks; what remains is for the next one
SHARE = 200  # of the loop's time, a sweep takes one part in so many at most
RARELY = 16  # sweeps between two walks from an ask that has waited long


class Hop(NamedTuple):
    """A handler on a walk, and the ask that it waits for."""

    actor: int
    ask: int  # its node's number for the ask
    label: str  # `actor.method` of the handler
    behind: str | None  # `actor.method` of the message that waits in the mailbox behind it, by which the walk came
    left: float | None  # seconds until the ask's deadline


class Verdict(NamedTuple):
    """Which ask is refused, and why."""

    actor: int
    ask: int
    steps: tuple[str, ...]
    text: str


class Walk:
    """From handler to handler along the asks that they wait for.

    Attributes:
        purpose: `SEARCH`, `CONFIRM` or `REFUSE`.
        path: the handlers passed, the one where it began first.
        verdict: with `REFUSE`, what is to be carried out on the way.
    """

    __slots__ = ("path", "purpose", "verdict")

    def __init__(self, purpose: int, path: list[Hop], verdict: Verdict | None = None) -> None:
        self.purpose = purpose
        self.path = path
        self.verdict = verdict

    def as_parts(self) -> list[Any]:
        """As plain data."""
        verdict = None if self.verdict is None else list(self.verdict)
        return [self.purpose, [list(hop) for hop in self.path], verdict]

    @classmethod
    def from_parts(cls, parts: list[Any]) -> Walk:
        """What the data means.

        Raises:
            CodecError: nothing.
        """
        purpose, hops, verdict = parts
        if purpose not in (SEARCH, CONFIRM, REFUSE) or not 0 < len(hops) <= MAX_HOPS:
            raise CodecError("a malformed walk along waiting asks")
        path = [
            Hop(int(actor), int(ask), str(label), behind and str(behind), None if left is None else float(left))
            for actor, ask, label, behind, left in hops
        ]
        if verdict is None:
            return cls(purpose, path)
        actor, ask, steps, text = verdict
        return cls(purpose, path, Verdict(int(actor), int(ask), tuple([str(step) for step in steps]), str(text)))


class Suspect:
    """An actor whose mailbox waits behind one and the same handler from sweep to sweep."""

    __slots__ = ("age", "blocked", "found", "running")

    def __init__(self, running: int) -> None:
        self.running = running  # the `id` of its message
        self.age = 0  # sweeps since it was last seen to do anything else
        self.blocked: Blocked | None = None
        self.found: list[tuple[int, int]] | None = None  # the cycle, as the first walk saw it


class CycleFinder:
    """One node's part in finding cycles of asks; `grace` is the seconds that an ask waits before anyone looks."""

    def __init__(self, node: Node, grace: float | None) -> None:
        self._node = node
        self._suspects: dict[int, Suspect] = {}
        self._numbers: weakref.WeakKeyDictionary[asyncio.Future[Any], int] = weakref.WeakKeyDictionary()
        self._next_number = itertools.count(1).__next__
        self._handle: asyncio.TimerHandle | None = None
        self._period = 0.0
        if grace is not None:
            self._period = grace / 2  # once to see a handler wait, once more to see that it still does
            self._handle = node.loop.call_later(self._period, self._sweep)

    def close(self) -> None:
        """Stop looking."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def arrived(self, peer: Peer, ident: int, parts: list[Any]) -> None:
        """A walk comes from another node, by its ask `ident`.

        Raises:
            CodecError: it is malformed.
        """
        walk = Walk.from_parts(parts)
        message: Any = peer.serving.open.get(ident)
        cell = self._node.cells.get(getattr(message, "actor", -1))
        if cell is not None:
            self._go_on(walk, self._pass(walk, cell, message))

    # Where walks begin

    def _sweep(self) -> None:
        loop = self._node.loop
        began = loop.time()
        self.look()
        self._handle = loop.call_later(max(self._period, SHARE * (loop.time() - began)), self._sweep)

    def look(self) -> None:
        """One sweep over this node's actors."""
        before, self._suspects = self._suspects, {}
        due: list[tuple[Cell, Suspect]] = []
        for cell in self._node.cells.values():
            if not cell.queue:
                continue
            suspect = before.get(cell.id)
            if suspect is None or suspect.running != id(cell.running):
                suspect = Suspect(id(cell.running))
            else:
                suspect.age += 1
                if suspect.blocked is not None and suspect.blocked.future.done():
                    suspect.age, suspect.blocked = 1, None
                if _is_due(suspect.age):
                    due.append((cell, suspect))
            self._suspects[cell.id] = suspect
        end = self._node.loop.time() + BUDGET
        for cell, suspect in due:
            if self._node.loop.time() < end:
                self._look_at(cell, suspect)
            else:
                suspect.age -= 1  # it is due again the next time

    def _look_at(self, cell: Cell, suspect: Suspect) -> None:
        held = holder(cell)
        blocked = None if held is None else blocked_in(held.handler)
        if blocked is None or held is None:
            suspect.blocked = None
        elif suspect.blocked is None or suspect.blocked.future is not blocked.future:
            suspect.age, suspect.blocked = 0, blocked
        elif (hop := self._hop(cell, held, None, blocked)) is not None:
            suspect.found = None
            self._go_on(Walk(SEARCH, [hop]), blocked)

    # Walking

    def _go_on(self, walk: Walk, blocked: Blocked | None) -> None:
        """Follow the ask that the last handler of the path waits for, and lead the walk on from there."""
        while blocked is not None:
            target, ask = blocked.target, blocked.ask
            if isinstance(target, RemoteTarget):
                if ask.sent:
                    self._node.exchange.send(target.address.node, [envelope.WAITS, ask.id, walk.as_parts()])
                return
            blocked = self._pass(walk, target, ask)

    def _pass(self, walk: Walk, cell: Cell, message: Message) -> Blocked | None:
        """Add the handler that an ask waits for to the path; the ask that it waits for, if the walk goes on there."""
        held = holder_of(cell, message)
        blocked = None if held is None else blocked_in(held.handler)
        hop = None if held is None or blocked is None else self._hop(cell, held, message, blocked)
        if hop is None or blocked is None:
            return None
        path, verdict = walk.path, walk.verdict
        if hop.behind is not None:
            is_first = hop[:2] == path[0][:2]
            if (hop.actor >= path[0].actor and not is_first) or not is_behind(cell, message):
                return None  # should this be a cycle, it is for the actor with the higher id to find
            if is_first:
                self._closed(walk.purpose, [hop, *path[1:]], blocked)
                return None
        if verdict is not None and hop[:2] == verdict[:2]:
            _refuse(blocked, verdict)
            return None
        if len(path) >= MAX_HOPS or any(hop[:2] == passed[:2] for passed in path):
            return None
        path.append(hop)
        return blocked

    def _hop(self, cell: Cell, held: Holder, message: Message | None, blocked: Blocked) -> Hop | None:
        left = None
        if blocked.due is not None:
            left = blocked.due - self._node.loop.time()
            if left <= 0:
                return None
        number = self._numbers.get(blocked.future)
        if number is None:
            number = self._numbers[blocked.future] = self._next_number()
        behind = f"{cell.name}.{message.method}" if message is not None and held.is_ahead else None
        return Hop(cell.id, number, f"{cell.name}.{held.method}", behind, left)

    def _closed(self, purpose: int, path: list[Hop], blocked: Blocked) -> None:
        """A walk has come back to its first handler, which waits for `blocked`."""
        suspect = self._suspects.get(path[0].actor)
        if suspect is None or purpose == REFUSE:
            return
        found = [(hop.actor, hop.ask) for hop in path]
        if purpose == SEARCH:
            suspect.found = found
            self._go_on(Walk(CONFIRM, path[:1]), blocked)
        elif suspect.found == found:
            suspect.found = None
            suspect.age = -RARELY  # nobody is to be refused twice for the same cycle
            verdict = judge(path)
            if verdict[:2] == path[0][:2]:
                _refuse(blocked, verdict)
            else:
                self._go_on(Walk(REFUSE, path[:1], verdict), blocked)


def judge(path: Sequence[Hop]) -> Verdict:
    """Which ask of a cycle is refused: the one whose deadline passes first, else the first one."""
    victim = min(range(len(path)), key=lambda index: math.inf if (left := path[index].left) is None else left)
    hops = [*path[victim:], *path[:victim]]
    steps = (*(hop.label for hop in hops), hops[0].label)
    behind = [f"{hop.behind} waits behind {hop.label}" for hop in [*hops[1:], hops[0]] if hop.behind is not None]
    text = f"asks wait for each other: {' -> '.join(steps)} ({', '.join(behind)})"
    return Verdict(hops[0].actor, hops[0].ask, steps, text)


def _refuse(blocked: Blocked, verdict: Verdict) -> None:
    """End an ask as its deadline would; whoever made it then takes it back from where it waits."""
    if not blocked.future.done():
        blocked.future.set_exception(AskCycleError(verdict.text, verdict.steps))


def _is_due(age: int) -> bool:
    return age > 0 and (age % RARELY == 0 if age >= RARELY else age & (age - 1) == 0)
