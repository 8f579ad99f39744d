"""The base class of actors, and the table of messages that a class answers."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, cast

from tinker_actors.actors.restart import Strategy

if TYPE_CHECKING:
    from tinker_actors.actors.cell import Cell
    from tinker_actors.actors.ref import ActorRef
    from tinker_actors.actors.view import MeshView

F = TypeVar("F", bound=Callable[..., Any])

RESERVED = frozenset({"tell", "stream", "options", "ref", "mesh", "exit", "on_start", "on_stop"})
"""Names of `Actor` and `ActorRef` that no message can bear."""

_OF_REFS = ("address", "target")
"""Attributes of every `ActorRef`: no message can be sent through it under these names."""


class Kind(enum.Enum):
    """How a method answers."""

    ASK = "ask"  # a coroutine method: one reply
    STREAM = "stream"  # an async generator method: replies one after another


@dataclass(frozen=True, slots=True)
class Method:
    """One message of an actor class."""

    name: str
    kind: Kind
    concurrent: bool  # may run while other messages of the same actor run


def concurrent(method: F) -> F:
    """Declare that a message may run while other messages of the same actor run.

    Messages still start in the order in which they came: a concurrent one starts as soon as all before it have
    started. Up to the mailbox's size of them run at once; more wait in the mailbox.
    """
    cast(Any, method).__actor_concurrent__ = True
    return method


class Actor:
    """Subclass it; public coroutine methods and async generators are the messages, `_names` are private.

    An actor serves one message at a time, in the order in which they came (FIFO for each sender), except for methods
    declared `@concurrent`. It is spawned with `mesh.spawn(Class, *args)`, and its own `ref` and `mesh` are there from
    before `__init__` on; `super().__init__()` need not be called.
    """

    __actor_cell__: Cell
    __actor_strategy__: ClassVar[Strategy] = Strategy.ONE_FOR_ONE
    __actor_drains__: ClassVar[bool] = True  # False: what it serves may wait for ever, so that stopping it cancels that

    async def on_start(self) -> None:
        """Hook: runs before the first message. If it raises, the start failed."""

    async def on_stop(self) -> None:
        """Hook: runs once after the last message of every incarnation that started, however it ended."""

    @property
    def ref(self) -> ActorRef:
        """The handle to this actor, to be given to others. Asking oneself through it is refused as a cycle."""
        return self.__actor_cell__.ref

    @property
    def mesh(self) -> MeshView:
        """Spawn, get, watch and stop actors from here. What this actor spawns ends when it ends or restarts."""
        return self.__actor_cell__.view

    def exit(self) -> None:
        """End this actor by itself: after this handler, without serving what still waits in the mailbox."""
        self.__actor_cell__.request_exit()

    if TYPE_CHECKING:
        # What a spawned actor's handle offers; for a type checker the handle is the actor itself.
        @property
        def tell(self) -> Any:
            """See `ActorRef.tell`."""

        @property
        def stream(self) -> Self:
            """See `ActorRef.stream`."""
            ...

        def options(self, *, timeout: float | None = None, wait: bool | None = None, buffer: int = 16) -> Self:
            """See `ActorRef.options`."""
            ...

    def __init_subclass__(cls, *, strategy: Strategy | None = None, **kwargs: Any) -> None:
        """`strategy`: whom the failure of one of the actors that this class's spawn restarts; see `Strategy`."""
        super().__init_subclass__(**kwargs)
        if strategy is not None:
            cls.__actor_strategy__ = strategy
        for name in RESERVED - {"on_start", "on_stop"}:
            if inspect.getattr_static(cls, name, None) is not inspect.getattr_static(Actor, name, None):
                raise TypeError(f"{cls.__qualname__}.{name}: the name {name!r} belongs to Actor; choose another")
        for name in _OF_REFS:
            if _kind_of(inspect.getattr_static(cls, name, None)) is not None:
                raise TypeError(f"{cls.__qualname__}.{name}: every ref has its own {name!r}; choose another name")


def _kind_of(function: Any) -> Kind | None:
    """How a class's attribute answers if it is a message."""
    if inspect.isasyncgenfunction(function):
        return Kind.STREAM
    return Kind.ASK if inspect.iscoroutinefunction(function) else None


def messages_of(cls: type[Actor]) -> dict[str, Method]:
    """The messages that `cls` answers, by name. Computed once a class."""
    table: dict[str, Method] | None = cls.__dict__.get("__actor_messages__")
    if table is None:
        table = {}
        for name in dir(cls):
            if name.startswith("_") or name in RESERVED:
                continue
            function = inspect.getattr_static(cls, name)
            kind = _kind_of(function)
            if kind is None:
                continue
            table[name] = Method(name, kind, getattr(function, "__actor_concurrent__", False))
        cast(Any, cls).__actor_messages__ = table
    return table


def plain_messages_of(cls: type[Actor]) -> frozenset[str]:
    """The names of the messages that have one reply and are served one at a time. Computed once a class."""
    plain: frozenset[str] | None = cls.__dict__.get("__actor_plain_messages__")
    if plain is None:
        messages = messages_of(cls).values()
        plain = frozenset(method.name for method in messages if method.kind is Kind.ASK and not method.concurrent)
        cast(Any, cls).__actor_plain_messages__ = plain
    return plain
