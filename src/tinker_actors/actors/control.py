"""What the nodes of a mesh tell one another about their actors."""

from __future__ import annotations

from dataclasses import dataclass

from tinker_actors.actors.ref import Address
from tinker_actors.actors.restart import RestartPolicy

SYSTEM_IDS = 4096
"""Actor ids below are the mesh's own: id k is node k's agent, id 0 the directory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassLocation:
    """Where another process of the same program finds an actor class."""

    module: str  # `__main__` for the program's own script
    qualname: str
    path: str | None  # the module's file, for modules that were loaded by path


@dataclass(frozen=True, kw_only=True, slots=True)
class CellSpec:
    """What a node needs to start an actor, besides its constructor arguments."""

    address: Address
    location: ClassLocation
    policy: RestartPolicy
    incarnation: int  # 1 for the first start
    restart_ages: tuple[float, ...] = ()  # seconds since each restart that still counts


@dataclass(frozen=True, kw_only=True, slots=True)
class SpawnRequest:
    """A child node's request that the directory start an actor."""

    location: ClassLocation
    arguments: bytes  # (args, kwargs), encoded without frames
    name: str | None
    node: int | None
    mailbox: int
    policy: RestartPolicy
    parent: int | None  # the spawning actor's id
    token: tuple[int, int, int]  # names the request, should its sender give it up


@dataclass(frozen=True, kw_only=True, slots=True)
class CellRestarted:
    """A node has started a new incarnation of one of its actors."""

    id: int
    incarnation: int
    reason: BaseException | None


@dataclass(frozen=True, kw_only=True, slots=True)
class CellEnded:
    """One of a node's actors has ended for good."""

    id: int
    reason: BaseException | None


Report = CellRestarted | CellEnded
