"""How turns and episodes end."""

from __future__ import annotations

from enum import Enum


class TurnEnd(Enum):
    """Why an action stopped."""

    STOP = "stop"
    """A stop token or stop string was sampled, or the actor of a scripted seat finished."""
    LENGTH = "length"
    """The limit on new tokens was reached."""
    CONTEXT_OVERFLOW = "context_overflow"
    """Prompt and reply together reached the context length."""
    ENV_ERROR = "env_error"
    """The environment raised while it handled the action."""
    AGENT_ERROR = "agent_error"
    """The agent raised instead of answering."""
    CANCELLED = "cancelled"
    """The request was cancelled."""
    TIMEOUT = "timeout"
    """A deadline passed."""

    @property
    def is_truncated(self) -> bool:
        """Whether the action was cut rather than finished."""
        return self in (TurnEnd.LENGTH, TurnEnd.CONTEXT_OVERFLOW)

    @property
    def is_error(self) -> bool:
        """Whether something went wrong outside the policy."""
        return self in (TurnEnd.ENV_ERROR, TurnEnd.AGENT_ERROR, TurnEnd.CANCELLED, TurnEnd.TIMEOUT)


class EpisodeEnd(Enum):
    """How an episode ended."""

    TERMINATED = "terminated"
    """The environment reached its own end."""
    TRUNCATED = "truncated"
    """A limit on turns or tokens cut it."""
    FORFEITED = "forfeited"
    """A seat failed, and the rule for that gave the rewards: for the other seats it is an outcome like others. The
    trajectory of the seat that failed ends `FAILED`."""
    FAILED = "failed"
    """Something raised: the episode is counted and named, and no estimator sees it."""

    @property
    def is_truncated(self) -> bool:
        """Whether the episode was cut before the environment's own end, and yet has an outcome."""
        return self in (EpisodeEnd.TRUNCATED, EpisodeEnd.FORFEITED)

    @property
    def is_error(self) -> bool:
        """Whether there is no valid outcome."""
        return self is EpisodeEnd.FAILED
