"""The mesh as a program or an actor sees it: spawn, get, watch, stop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from tinker_actors.actors.actor import Actor
from tinker_actors.actors.checks import check_count, check_index, check_name, check_seconds, check_type
from tinker_actors.actors.errors import SpawnError, UnroutableError
from tinker_actors.actors.group import Group
from tinker_actors.actors.ref import ActorRef
from tinker_actors.actors.restart import RestartPolicy

if TYPE_CHECKING:
    import numpy as np

    from tinker_actors.actors.barrier import Barrier, Party
    from tinker_actors.actors.cell import Cell
    from tinker_actors.actors.dead_letters import Lost
    from tinker_actors.actors.events import Event
    from tinker_actors.actors.node import Node

A = TypeVar("A", bound=Actor)
V = TypeVar("V")  # a NumPy array or a torch tensor

MAILBOX = 1024  # messages that may wait, unless the spawn says otherwise

BARRIER_MAILBOX = 1 << 20  # arrivals at a barrier that wait at once, in one message a process and turn


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """How an actor is to be spawned."""

    name: str | None
    node: int | None
    mailbox: int
    policy: RestartPolicy
    parent: int | None

    def __post_init__(self) -> None:
        if self.name is not None:
            check_name("name", self.name)
        if self.node is not None:
            check_index("node", self.node)
        check_count("mailbox", self.mailbox, 1)


class Registry(Protocol):
    """The directory, or a child node's way to it."""

    async def spawn(self, cls: type[Actor], args: tuple[Any, ...], kwargs: Mapping[str, Any], order: Order) -> ActorRef:
        """Start an actor."""
        ...

    async def stop(self, ref: ActorRef, *, drain: bool, timeout: float | None) -> None:
        """End an actor."""
        ...

    def watch(self, ref: ActorRef) -> AsyncIterator[Event]:
        """An actor's events."""
        ...


class MeshView:
    """What `self.mesh` is inside an actor; a `Mesh` offers the same and owns the nodes besides."""

    def __init__(self, registry: Registry | None, node: Node | None, owner: Cell | None = None) -> None:
        self._registry: Registry | None = registry
        self._node: Node | None = node
        self._owner = owner

    async def spawn(
        self,
        cls: type[A],
        *args: Any,
        name: str | None = None,
        node: int | None = None,
        restart: RestartPolicy | None = None,
        mailbox: int = MAILBOX,
        **kwargs: Any,
    ) -> A:
        """Start an actor and return its ref, which a type checker sees as the actor itself.

        Args:
            cls: the actor's class; for another node it must be importable there (a script's own classes are).
            *args: arguments of its constructor, as are `**kwargs`. On another node they must be sendable; a restart
                constructs from the same ones.
            name: unique in the mesh while the actor lives; for `get`, logs and errors. At most 512 characters.
            node: index of the process to hold it; None: the child nodes in turn, or this process if there are none.
            restart: what becomes of it after a failure; None: `RestartPolicy.never()`.
            mailbox: messages that may wait for it.
            **kwargs: see `*args`.

        Raises:
            ConfigError: an option that means nothing; the message names it.
            SpawnError: the name is taken, there is no such node, or the class can't be found there.
            Exception: whatever the constructor or `on_start` raised, as an ask would give it.
        """
        if not (isinstance(cls, type) and issubclass(cls, Actor)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SpawnError(f"only subclasses of Actor can be spawned, got {cls!r}")
        if restart is not None:
            check_type("restart", restart, RestartPolicy, "a RestartPolicy")
        registry, _ = self._open()
        parent = None
        policy = restart or RestartPolicy.never()
        if self._owner is not None:
            parent = self._owner.id
            self._owner.life.has_children = True
            policy = replace(policy, strategy=self._owner.cls.__actor_strategy__)
        order = Order(name=name, node=node, mailbox=mailbox, policy=policy, parent=parent)
        return cast(A, await registry.spawn(cls, args, kwargs, order))

    def get(self, name: str) -> Any:
        """The ref of the living actor that was spawned with this name.

        Raises:
            LookupError: there is none.
        """
        _, node = self._open()
        ref = node.names.get(name)
        if ref is None:
            raise LookupError(f"no actor is named {name!r}; named are: {', '.join(sorted(node.names)) or 'none'}")
        return ref

    async def stop(self, actor: Actor | ActorRef, *, drain: bool = True, timeout: float | None = None) -> None:
        """End an actor for good and wait until it has.

        It takes no new messages; with `drain` those in its mailbox are still served, for at most `timeout` seconds,
        then `on_stop` runs and the actors that it spawned are ended. Without `drain` the present message is cancelled
        and what waits fails with `ActorStoppedError`.
        """
        if timeout is not None:
            check_seconds("timeout", timeout, least=0)
        registry, _ = self._open()
        await registry.stop(_ref(actor), drain=drain, timeout=timeout)

    def watch(self, actor: Actor | ActorRef) -> AsyncIterator[Event]:
        """The `Restarted` and at last the `Terminated` events of an actor, from now on."""
        registry, _ = self._open()
        return registry.watch(_ref(actor))

    def buffer(self, shape: int | tuple[int, ...], dtype: Any = "float32") -> np.ndarray[Any, Any]:
        """An array in shared memory, to be filled, then sent to other processes of this host without a copy.

        Sending it, or a contiguous part of it, makes it read-only: its receivers read this very memory. For the next
        message make another buffer; once nobody holds the old one its memory is used again. Where there is no shared
        memory, or no room in it, the array lies in ordinary memory and sending it copies. Its content is undefined.
        """
        for size in shape if isinstance(shape, tuple) else (shape,):
            check_count("shape", size, 0)
        return self._open()[1].exchange.bulk.array(shape, dtype)

    def put(self, value: V) -> V:
        """A copy of an array or a tensor in shared memory, from where it is sent any number of times without a copy.

        An array comes back read-only. A tensor can't be; it must not be changed as long as anyone may read it.
        Where there is no shared memory, or no room in it, the copy lies in ordinary memory.
        """
        return self._open()[1].exchange.bulk.place(value)

    def group(self, actors: Iterable[Actor | ActorRef]) -> Group:
        """Several actors asked as one; see `Group`."""
        self._open()
        return Group(actors)

    async def barrier(
        self, parties: Iterable[Party] = (), *, timeout: float | None = None, name: str | None = None
    ) -> Barrier:
        """Make a barrier; it ends with the actor that made it.

        Args:
            parties: who must arrive: actors, wherever they are, and names for anything else that takes part.
            timeout: seconds that the first to arrive waits for the last, before the barrier breaks.
            name: a name for `get`, logs and errors.
        """
        from tinker_actors.actors.barrier import Barrier, BarrierHub, members

        if timeout is not None:
            check_seconds("timeout", timeout, above=0)
        hub: Any = await self.spawn(BarrierHub, members(parties), timeout, name=name, node=0, mailbox=BARRIER_MAILBOX)
        return Barrier(hub)

    @property
    def nodes(self) -> int:
        """The number of nodes, this process included; they have the indices 0 to `nodes - 1`."""
        return self._open()[1].count

    @property
    def node(self) -> int:
        """The index of this process's node."""
        return self._open()[1].index

    @property
    def dead_letters_by_cause(self) -> dict[Lost, int]:
        """`dead_letters`, each counted under what became of it."""
        return self._open()[1].letters.by_cause

    @property
    def dead_letters(self) -> int:
        """Tells sent from or served on this node that failed or reached nobody."""
        return self._open()[1].dead_letters

    def _open(self) -> tuple[Registry, Node]:
        if self._registry is None or self._node is None or self._node.closed:
            raise UnroutableError("the mesh is not running: use it inside `async with`")
        return self._registry, self._node


def _ref(actor: Any) -> ActorRef:
    if not isinstance(actor, ActorRef):
        raise TypeError(f"expected the ref of an actor, got {type(actor).__name__}")
    return actor
