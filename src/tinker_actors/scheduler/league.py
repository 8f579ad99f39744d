"""A league: a pool of past snapshots of a policy, from which the opponents of groups are drawn.

With the rule `win_rate` a member weighs (1 - p) ** power, p being the learner's win rate against it, so that those that
still beat the learner are met most (prioritised fictitious self-play, Vinyals et al. 2019, "Grandmaster level in
StarCraft II", the weighting f_hard).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from tinker_actors.scheduler.players import SeatSection

SIZE = 16
"""Members that a pool has at most, if its table says nothing else."""

_KEPT = 0.9  # share of the games that a member's win rate remembers when it has played once more: learners change


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A snapshot in a pool.

    Attributes:
        snapshot: Its handle.
        games: How many episodes against it count, older ones less.
        points: What the learner won in them: 1 for a win, 1/2 for a draw.
    """

    snapshot: str
    games: float = 0.0
    points: float = 0.0

    @property
    def win_rate(self) -> float:
        """The learner's against it, with one drawn game more; 1/2 before the first game."""
        return (self.points + 0.5) / (self.games + 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The members at one time; part of a run's exact state.

    Attributes:
        members: Oldest first.
    """

    members: tuple[Member, ...] = ()

    def entered(self, snapshot: str, settings: SeatSection) -> Pool:
        """The pool with one more member, and without the oldest if it is full."""
        size = settings.size or SIZE
        return Pool(members=(*self.members, Member(snapshot=snapshot))[-size:])

    def scored(self, results: Mapping[str, Sequence[float]]) -> Pool:
        """The pool after games.

        Args:
            results: By snapshot, the learner's points of each episode against it; of others than members they don't
                count.
        """
        return Pool(members=tuple(_scored(member, results.get(member.snapshot, ())) for member in self.members))

    def renamed(self, names: Mapping[str, str]) -> Pool:
        """The pool with other handles for the same weights."""
        return Pool(members=tuple(replace(m, snapshot=names.get(m.snapshot, m.snapshot)) for m in self.members))

    def weights(self, settings: SeatSection) -> list[float]:
        """How likely each member is drawn, up to a common factor."""
        count = len(self.members)
        match settings.rule or "uniform":
            case "uniform":
                return [1.0] * count
            case "latest_k":
                first = count - (settings.latest_k or 5)
                return [float(place >= first) for place in range(count)]
            case "age":
                decay = 0.8 if settings.age_decay is None else settings.age_decay
                return [decay ** (count - 1 - place) for place in range(count)]
            case "win_rate":
                power = 2.0 if settings.win_rate_power is None else settings.win_rate_power
                return [(1.0 - member.win_rate) ** power for member in self.members]

    def draw(self, settings: SeatSection, luck: Random, *, newest: str) -> str:
        """The handle of a group's opponent.

        Args:
            settings: The rule, and the share of groups against the newest snapshot.
            luck: The group's own.
            newest: The newest snapshot of the policy.
        """
        share = 0.2 if settings.self_share is None else settings.self_share
        if luck.random() < share or not self.members:
            return newest
        weights = self.weights(settings)
        # a high power of a small number is 0 in the end
        return luck.choices(self.members, weights=weights if any(weights) else None)[0].snapshot


def due(settings: SeatSection, step: int) -> bool:
    """Whether the snapshot after so many steps enters the pool."""
    return step % (settings.every or 5) == 0


def _scored(member: Member, points: Iterable[float]) -> Member:
    won = list(points)
    if not won:
        return member
    return replace(member, games=member.games * _KEPT + len(won), points=member.points * _KEPT + math.fsum(won))
