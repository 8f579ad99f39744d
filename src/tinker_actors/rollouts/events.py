"""What whoever collects episodes is told meanwhile."""

from __future__ import annotations

from dataclasses import dataclass

from tinker_actors.data import Episode


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodesDone:
    """Episodes came in.

    Attributes:
        episodes: The new ones.
        done: How many rollouts have a result now.
        total: How many were planned.
    """

    episodes: tuple[Episode, ...]
    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLost:
    """A worker died or fell silent.

    Attributes:
        worker: Its name.
        cause: One line.
        unfinished: How many of its rollouts are tried again.
    """

    worker: str
    cause: str
    unfinished: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerBlocked:
    """A worker's event loop doesn't turn. It keeps its rollouts.

    Attributes:
        worker: Its name.
        seconds: For which it has not answered.
    """

    worker: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRaised:
    """User code raised in a way that its worker has not told of yet.

    Attributes:
        episode: The id of the episode in which it did.
        error: One line; None if it hasn't failed, because only its close, or an agent's finish, raised.
        traceback: The whole of it.
    """

    episode: str
    error: str | None
    traceback: str


CollectEvent = EpisodesDone | EpisodeRaised | WorkerLost | WorkerBlocked
