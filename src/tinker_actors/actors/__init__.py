"""Actors on asyncio: a mailbox each, supervised, in one process or in many, over ZeroMQ and msgpack.

    class Counter(Actor):
        async def add(self, n: int) -> int: ...

    async with Mesh(nodes=2) as mesh:
        counter = await mesh.spawn(Counter, name="counter")
        await counter.add(1)

Importing this package loads no ZeroMQ; a mesh of more than one node does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinker_actors.lazy import lazy_names

if TYPE_CHECKING:
    from tinker_actors.actors.actor import Actor, concurrent
    from tinker_actors.actors.barrier import Barrier, BarrierState
    from tinker_actors.actors.dead_letters import Lost
    from tinker_actors.actors.deadlines import deadline
    from tinker_actors.actors.description import (
        ActorDescription,
        LinkDescription,
        MeshDescription,
        NodeDescription,
    )
    from tinker_actors.actors.errors import (
        ActorDiedError,
        ActorError,
        ActorFailure,
        ActorStoppedError,
        AskCycleError,
        BarrierBrokenError,
        BarrierError,
        CodecError,
        DeadlineExceeded,
        HandshakeError,
        JoinError,
        ListenError,
        MailboxFull,
        NodeDiedError,
        NodeUnreachableError,
        QuorumError,
        RemoteError,
        RemoteTraceback,
        SpawnError,
        UnroutableError,
    )
    from tinker_actors.actors.events import Event, Restarted, Terminated
    from tinker_actors.actors.group import Group
    from tinker_actors.actors.joined import JoinedMesh
    from tinker_actors.actors.keys import Keys
    from tinker_actors.actors.mesh import Mesh
    from tinker_actors.actors.on_ray import RayPlacement
    from tinker_actors.actors.placement import Placement
    from tinker_actors.actors.ref import ActorRef
    from tinker_actors.actors.restart import Restart, RestartPolicy, Strategy
    from tinker_actors.actors.tags import wire
    from tinker_actors.actors.tracing import current_trace, trace
    from tinker_actors.actors.view import MeshView

_HOMES = {
    "actor": ("Actor", "concurrent"),
    "barrier": ("Barrier", "BarrierState"),
    "dead_letters": ("Lost",),
    "deadlines": ("deadline",),
    "description": ("ActorDescription", "LinkDescription", "MeshDescription", "NodeDescription"),
    "errors": (
        "ActorDiedError",
        "ActorError",
        "ActorFailure",
        "ActorStoppedError",
        "AskCycleError",
        "BarrierBrokenError",
        "BarrierError",
        "CodecError",
        "DeadlineExceeded",
        "HandshakeError",
        "JoinError",
        "ListenError",
        "MailboxFull",
        "NodeDiedError",
        "NodeUnreachableError",
        "QuorumError",
        "RemoteError",
        "RemoteTraceback",
        "SpawnError",
        "UnroutableError",
    ),
    "events": ("Event", "Restarted", "Terminated"),
    "group": ("Group",),
    "joined": ("JoinedMesh",),
    "keys": ("Keys",),
    "mesh": ("Mesh",),
    "on_ray": ("RayPlacement",),
    "placement": ("Placement",),
    "ref": ("ActorRef",),
    "restart": ("Restart", "RestartPolicy", "Strategy"),
    "tags": ("wire",),
    "tracing": ("current_trace", "trace"),
    "view": ("MeshView",),
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Actor",
    "ActorDescription",
    "ActorDiedError",
    "ActorError",
    "ActorFailure",
    "ActorRef",
    "ActorStoppedError",
    "AskCycleError",
    "Barrier",
    "BarrierBrokenError",
    "BarrierError",
    "BarrierState",
    "CodecError",
    "DeadlineExceeded",
    "Event",
    "Group",
    "HandshakeError",
    "JoinError",
    "JoinedMesh",
    "Keys",
    "LinkDescription",
    "ListenError",
    "Lost",
    "MailboxFull",
    "Mesh",
    "MeshDescription",
    "MeshView",
    "NodeDescription",
    "NodeDiedError",
    "NodeUnreachableError",
    "Placement",
    "QuorumError",
    "RayPlacement",
    "RemoteError",
    "RemoteTraceback",
    "Restart",
    "RestartPolicy",
    "Restarted",
    "SpawnError",
    "Strategy",
    "Terminated",
    "UnroutableError",
    "concurrent",
    "current_trace",
    "deadline",
    "trace",
    "wire",
]

__getattr__ = lazy_names(__name__, _MODULES)
