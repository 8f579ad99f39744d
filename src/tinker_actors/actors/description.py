"""What `mesh.describe()` returns: the state of a mesh at one moment, as plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkDescription:
    """The way from one node to another.

    Attributes:
        peer: index of the node at its other end.
        up: whether that node's actors can be reached now.
        messages: envelopes that wait at the sender, for room at their target, for the node, or for the socket.
        bytes: the size of those, arrays included.
        unanswered: asks and streams sent and not answered yet.
    """

    peer: int
    up: bool
    messages: int
    bytes: int
    unanswered: int


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeDescription:
    """One process of the mesh. Where it did not answer, only the first five fields are known.

    Attributes:
        index: 0 is the process that runs the mesh.
        pid: its process id; None if there is none now, or on another host that did not answer.
        host: the name of the machine; empty for another one that did not answer.
        incarnation: 1 for the first process with this index.
        state: `up`; `silent` (it runs but did not answer in time, as when its loop is blocked) or `down`.
        up_since: Unix time at which this incarnation came up.
        loop_lag: seconds that its event loop was late at most, in the last ten seconds or so.
        bad_messages: what came in and could not be read.
        dead_letters: tells that failed or reached nobody.
        rss: bytes of memory that the process has in use.
        links: to the other nodes that it knows.
    """

    index: int
    pid: int | None
    host: str
    incarnation: int
    state: str
    up_since: float | None = None
    loop_lag: float | None = None
    bad_messages: int | None = None
    dead_letters: int | None = None
    rss: int | None = None
    links: tuple[LinkDescription, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ActorDescription:
    """One living actor. Where its node did not answer, `state` is `unknown` and the numbers are None.

    Attributes:
        id: unique in the mesh, never used again.
        name: the name it was given, or `Class-number`.
        cls: its class's name.
        node: index of the process that holds it.
        state: `starting`, `running`, `restarting`, `draining` or `unknown`.
        mailbox: messages that wait, and concurrent ones that run.
        mailbox_bound: messages that may wait.
        handled: messages served, those in progress left out; since its process started.
        rate: messages served a second, since the last look at least half a second ago (or the process's start).
        p50: seconds that half of its recent handlers took at most; None before the first. Of long series one in 61
            is measured; streams are left out; right within 12 %.
        p99: the same for 99 of 100.
        restarts: how often it was started again.
        children: ids of the actors that it spawned.
    """

    id: int
    name: str
    cls: str
    node: int
    state: str
    mailbox: int | None
    mailbox_bound: int
    handled: int | None
    rate: float | None
    p50: float | None
    p99: float | None
    restarts: int
    children: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class MeshDescription:
    """A mesh at one moment: nodes by index, actors in the order in which they were spawned.

    Attributes:
        name: the one it was given, or its program's.
        pid: the process that runs it.
        time: Unix time of this description.
    """

    name: str
    pid: int
    time: float
    nodes: tuple[NodeDescription, ...]
    actors: tuple[ActorDescription, ...]

    def actor(self, name: str) -> ActorDescription:
        """The actor of this name.

        Raises:
            LookupError: there is none.
        """
        for actor in self.actors:
            if actor.name == name:
                return actor
        raise LookupError(f"no actor is named {name!r}")
