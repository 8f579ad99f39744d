"""What happens to an actor after it failed: the restart policy that its parent names when spawning it."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tinker_actors.actors.checks import check_count, check_seconds, check_type


class Restart(enum.Enum):
    """When an actor is started again under the same ref."""

    NEVER = "never"  # it ends; watchers hear of it; nothing escalates
    ON_FAILURE = "on_failure"  # after a failure or its node's death, not after it ended by itself
    ALWAYS = "always"  # also after it ended by itself (`self.exit()`); never after `mesh.stop`


class Strategy(enum.Enum):
    """Whom a failure restarts; named by the parent: `class Pool(Actor, strategy=Strategy.ALL_FOR_ONE)`."""

    ONE_FOR_ONE = "one_for_one"  # only the actor that failed
    ALL_FOR_ONE = "all_for_one"  # all that the same parent spawned, each by its own policy


@dataclass(frozen=True, kw_only=True, slots=True)
class RestartPolicy:
    """At most `max_restarts` restarts in any `within` seconds; one more failure ends the actor and escalates.

    >>> RestartPolicy.on_failure(max_restarts=5).delay(2)
    0.2
    """

    mode: Restart = Restart.ON_FAILURE
    max_restarts: int = 3  # restarts allowed in any window of `within` seconds
    within: float = 60.0  # seconds
    backoff: float = 0.05  # seconds before the first restart; doubles with each further one in the window
    backoff_max: float = 5.0  # seconds
    strategy: Strategy = Strategy.ONE_FOR_ONE  # the parent's

    def __post_init__(self) -> None:
        check_type("mode", self.mode, Restart, "one of Restart")
        check_type("strategy", self.strategy, Strategy, "one of Strategy")
        check_count("max_restarts", self.max_restarts, 0)
        check_seconds("within", self.within, above=0)
        check_seconds("backoff", self.backoff, least=0)
        check_seconds("backoff_max", self.backoff_max, least=0)

    @classmethod
    def never(cls) -> RestartPolicy:
        """The actor ends at its first failure."""
        return cls(mode=Restart.NEVER, max_restarts=0)

    @classmethod
    def on_failure(cls, max_restarts: int = 3, within: float = 60.0, backoff: float = 0.05) -> RestartPolicy:
        """Restart after failures only."""
        return cls(mode=Restart.ON_FAILURE, max_restarts=max_restarts, within=within, backoff=backoff)

    @classmethod
    def always(cls, max_restarts: int = 3, within: float = 60.0, backoff: float = 0.05) -> RestartPolicy:
        """Restart after failures and after the actor ended by itself."""
        return cls(mode=Restart.ALWAYS, max_restarts=max_restarts, within=within, backoff=backoff)

    def delay(self, recent: int) -> float:
        """Seconds to wait before the next restart when `recent` restarts already lie in the window."""
        return min(self.backoff * 2.0 ** min(recent, 30), self.backoff_max)


class RestartHistory:
    """The restarts of one actor inside its policy's window. Times are `loop.time()` seconds."""

    __slots__ = ("_times", "policy")

    def __init__(self, policy: RestartPolicy, times: tuple[float, ...] = ()) -> None:
        self.policy = policy
        self._times = list(times)

    def next_delay(self, now: float, *, failed: bool) -> float | None:
        """Record a restart and return the seconds to wait before it, or None where the policy allows none."""
        policy = self.policy
        if policy.mode is Restart.NEVER or (policy.mode is Restart.ON_FAILURE and not failed):
            return None
        self._times = [time for time in self._times if now - time < policy.within]
        recent = len(self._times)
        if recent >= policy.max_restarts:
            return None
        self._times.append(now)
        return policy.delay(recent)

    def record(self, now: float) -> None:
        """Count a restart that another node made."""
        self._times = [time for time in self._times if now - time < self.policy.within]
        self._times.append(now)

    def ages(self, now: float) -> tuple[float, ...]:
        """Seconds since each restart still in the window: what another node needs to go on counting."""
        return tuple(now - time for time in self._times if now - time < self.policy.within)
