"""The errors of the actor runtime. All derive from `tinker_actors.errors.ActorError`.

Every one can cross a process boundary: its arguments and attributes are plain data.
"""

from __future__ import annotations

from tinker_actors.errors import ActorError


class MailboxFull(ActorError):  # noqa: N818
    """The target's mailbox has no room and the sender asked not to wait (or sent a tell, which can't wait)."""


class DeadlineExceeded(ActorError, TimeoutError):  # noqa: N818
    """The deadline of an ask, of a stream or of a `deadline()` block passed first."""


class ActorDiedError(ActorError):
    """The target failed and is not coming back, or failed while it served this message."""


class ActorStoppedError(ActorError):
    """The target was stopped and takes no more messages."""


class NodeDiedError(ActorError):
    """The process that held the target ended; `log_tail` is the end of what it wrote."""

    def __init__(self, message: str = "", log_tail: str = "") -> None:
        super().__init__(message)
        self.log_tail = log_tail

    def __str__(self) -> str:
        message = str(self.args[0]) if self.args else ""
        return f"{message}\n--- end of its log ---\n{self.log_tail.rstrip()}" if self.log_tail else message


class UnroutableError(ActorError):
    """No such node, or the mesh is closed: the message can't be sent at all."""


class AskCycleError(ActorError):
    """An ask would wait for itself; the message spells the cycle, `cycle` holds its steps as `actor.method`."""

    def __init__(self, message: str = "", cycle: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.cycle = cycle


class QuorumError(ActorError):
    """So many members of a group failed that there can't be as many answers as asked for.

    Attributes:
        errors: what each member that failed raised, by its name.
    """

    def __init__(self, message: str = "", errors: dict[str, Exception] | None = None) -> None:
        super().__init__(message)
        self.errors = errors or {}


class BarrierError(ActorError):
    """An arrival that a barrier refuses: not a party, there already, or for a phase that is not going on."""


class BarrierBrokenError(BarrierError):
    """A barrier broke: every party that waits or arrives gets this until the barrier is reset.

    Attributes:
        phase: the phase that was going on; -1 if the barrier itself is gone.
        cause: what happened.
        reason: the error behind it, if there is one; also the `__cause__`.
    """

    def __init__(self, phase: int = -1, cause: str = "", reason: Exception | None = None) -> None:
        super().__init__(phase, cause)
        self.phase = phase
        self.cause = cause
        self.reason = reason
        self.__cause__ = reason

    def __str__(self) -> str:
        return self.cause if self.phase < 0 else f"phase {self.phase}: {self.cause}"

    def again(self) -> BarrierBrokenError:
        """A copy to raise: whoever raises an error adds to its traceback."""
        return BarrierBrokenError(self.phase, self.cause, self.reason)


class RemoteError(ActorError):
    """A handler raised an exception of a type that is not revived here.

    Attributes:
        type_name: qualified name of the exception's class, such as `mypackage.errors.Oops`.
        message: its `str()`.
        traceback: the formatted traceback from where it was raised.
    """

    def __init__(self, type_name: str = "", message: str = "", traceback: str = "") -> None:
        super().__init__(f"{type_name}: {message}" if message else type_name)
        self.type_name = type_name
        self.message = message
        self.traceback = traceback


class RemoteTraceback(Exception):  # noqa: N818
    """The `__cause__` of a revived exception: its text is the traceback from the process that raised it."""

    def __init__(self, text: str = "") -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text.rstrip()}"


class ActorFailure(ActorError):  # noqa: N818
    """Raised by an actor's own handler to say that the actor itself is broken: its restart policy applies."""


class CodecError(ActorError, ValueError):
    """A value can't be sent (its type is not registered, it is too large or too deep) or bytes can't be read."""


class SpawnError(ActorError):
    """An actor or a node could not be started; the cause is chained."""


class NodeUnreachableError(ActorError, ConnectionError):
    """The link to the target's host is cut or silent; the target may live, and is reachable again once it heals."""


class ListenError(ActorError, OSError):
    """A mesh can't listen where it was told to: the port is taken, or the address is not this host's."""


class JoinError(ActorError, ConnectionError):
    """A node could not join a mesh: nobody answers there, or the mesh refused it."""


class HandshakeError(JoinError):
    """The two hosts' keys don't fit: one has none, an unknown one, or not the one that was expected."""
