"""The handle to an actor. It works in whichever process of the mesh it arrives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from tinker_actors.actors.checks import check_count, check_seconds, check_type


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """How messages are sent through a ref.

    Attributes:
        timeout: seconds until `DeadlineExceeded`; an ambient deadline can only shorten it. For a tell: seconds that it
            may wait for room, with `wait=True`; once sent, it has no deadline.
        wait: what to do when the mailbox is full. None: asks and streams wait, tells raise `MailboxFull`.
            True: tells wait too, and must be awaited. False: everything raises `MailboxFull`.
        buffer: items that a stream's producer may run ahead of its reader.
    """

    timeout: float | None = None
    wait: bool | None = None
    buffer: int = 16

    def __post_init__(self) -> None:
        if self.timeout is not None:
            check_seconds("timeout", self.timeout)
        if self.wait is not None:
            check_type("wait", self.wait, bool, "True, False or None")
        check_count("buffer", self.buffer, 1)


DEFAULT = Options()


class Target(Protocol):
    """Where a ref's messages go: a mailbox in this process, or the link to another one."""

    def asks(self, options: Options, method: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        """A function of the message's arguments, which sends and awaits the reply. A ref makes it once a method."""
        ...

    def tell(
        self, options: Options, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Awaitable[None] | None:
        """Send and forget."""
        ...

    def stream(self, options: Options, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """An async iterator over the replies."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Address:
    """Which actor a ref means; all that crosses the wire of it."""

    mesh: str  # the mesh's own random id
    id: int  # unique in the mesh, never used again
    node: int  # the process that holds it, for its whole life
    name: str
    kind: str  # the class's name, for people
    mailbox: int  # messages that may wait at the target


def positional(send: Callable[..., Any], options: Options, method: str) -> Callable[..., Any]:
    """A function of a message's arguments, which `send` takes after what stays the same."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return send(options, method, args, kwargs)

    return call


class _Sender:
    """`ref.tell` and `ref.stream`: attribute access names the message."""

    __slots__ = ("__dict__", "_options", "_send")

    def __init__(self, send: Callable[..., Any], options: Options) -> None:
        self._send = send
        self._options = options

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(f"{name!r} is private; only public methods are messages")
        call = self.__dict__[name] = positional(self._send, self._options, name)
        return call


class ActorRef:
    """`await ref.method(...)` asks, `ref.tell.method(...)` tells, `async for x in ref.stream.method(...)` streams.

    Refs can be compared, hashed, and sent as arguments and results. Nothing is sent before the coroutine of an ask is
    awaited, or a stream's first item is asked for.

    Errors that an ask or a stream raises by itself: `DeadlineExceeded`, `MailboxFull`, `ActorDiedError`,
    `ActorStoppedError`, `NodeDiedError`, `UnroutableError`, `AskCycleError`, `CodecError`, and `RemoteError` for
    exceptions of types that are neither builtin, of this package, nor registered with `@wire`.
    """

    __slots__ = ("__dict__", "__weakref__", "_options", "address", "target")

    address: Address
    target: Target

    def __init__(self, address: Address, target: Target, options: Options = DEFAULT) -> None:
        self.address = address
        self.target = target
        self._options = options

    if TYPE_CHECKING:
        tell: Any
        stream: Any

    def __getattr__(self, name: str) -> Any:
        if name == "tell":
            value: Any = _Sender(self.target.tell, self._options)
        elif name == "stream":
            value = _Sender(self.target.stream, self._options)
        elif name.startswith("_"):
            raise AttributeError(f"{name!r} is private; only public methods are messages")
        else:
            value = self.target.asks(self._options, name)
        self.__dict__[name] = value
        return value

    def options(self, **changes: Any) -> ActorRef:
        """The same handle with other sending options: `timeout` (seconds), `wait`, `buffer`; see `Options`."""
        return ActorRef(self.address, self.target, replace(self._options, **changes))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActorRef) and other.address == self.address

    def __hash__(self) -> int:
        return hash((self.address.mesh, self.address.id))

    def __repr__(self) -> str:
        address = self.address
        return f"<ActorRef {address.name} ({address.kind}) on node {address.node}>"
