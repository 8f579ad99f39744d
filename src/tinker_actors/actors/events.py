"""What `mesh.watch` yields."""

from __future__ import annotations

from dataclasses import dataclass

from tinker_actors.actors.ref import ActorRef


@dataclass(frozen=True, kw_only=True, slots=True)
class Restarted:
    """The actor failed and was started again under the same ref; its state is that of its constructor arguments."""

    ref: ActorRef
    incarnation: int  # 1 for the first start
    reason: BaseException | None  # why its predecessor ended; None if by itself


@dataclass(frozen=True, kw_only=True, slots=True)
class Terminated:
    """The actor ended for good; the last event of a watch."""

    ref: ActorRef
    reason: BaseException | None  # None: stopped, or ended by itself


Event = Restarted | Terminated
