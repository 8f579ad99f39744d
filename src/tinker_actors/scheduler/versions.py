"""What a step is played with: the newest snapshot of every policy at one time, and the leagues' pools at that time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tinker_actors.scheduler.league import Member, Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """What there is after some number of steps.

    Attributes:
        snapshots: The handle of each learning policy's newest snapshot, by its id.
        pools: The pool of every league, by the seat whose table it is.
    """

    snapshots: Mapping[str, str]
    pools: Mapping[str, Pool] = field(default_factory=dict[str, Pool])

    @property
    def handles(self) -> tuple[str, ...]:
        """All that may be played with."""
        members = [member.snapshot for pool in self.pools.values() for member in pool.members]
        return tuple(dict.fromkeys((*members, *self.snapshots.values())))

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Version:
        """The version that was written down as plain data (`dataclasses.asdict`, through JSON)."""
        pools = {
            seat: Pool(members=tuple(Member(**member) for member in pool["members"]))
            for seat, pool in plain["pools"].items()
        }
        return cls(snapshots=dict(plain["snapshots"]), pools=pools)

    def renamed(self, names: Mapping[str, str]) -> Version:
        """The version with other handles for the same weights."""
        return Version(
            snapshots={policy: names.get(handle, handle) for policy, handle in self.snapshots.items()},
            pools={seat: pool.renamed(names) for seat, pool in self.pools.items()},
        )
