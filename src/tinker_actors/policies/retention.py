"""Which snapshots may go: by count, by age, and by a time to live of their own."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tinker_actors.errors import ConfigError
from tinker_actors.policies.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What is kept of a policy's snapshots or checkpoints; a bound that is None keeps everything.

    A snapshot expires when any bound says so, or when its own time to live is over. The newest never does.

    >>> Retention(keep_last=0)
    Traceback (most recent call last):
    tinker_actors.errors.ConfigError: keep_last is 0; an integer of at least 1, or None, is needed

    Attributes:
        keep_last: How many of the newest are kept.
        max_age: Seconds since it was stored.
    """

    keep_last: int | None = None
    max_age: float | None = None

    def __post_init__(self) -> None:
        if self.keep_last is not None and self.keep_last < 1:
            raise ConfigError(f"keep_last is {self.keep_last}; an integer of at least 1, or None, is needed")
        if self.max_age is not None and not (math.isfinite(self.max_age) and self.max_age > 0):
            raise ConfigError(f"max_age is {self.max_age}; a positive number of seconds, or None, is needed")

    def expired(self, snapshots: Sequence[Snapshot], *, now: float, kept: Collection[str] = ()) -> list[Snapshot]:
        """What may be deleted.

        Args:
            snapshots: All of one policy and kind, oldest first.
            now: Seconds since the epoch.
            kept: Handles that stay whatever their age: pinned, or in use.
        """
        last = len(snapshots) - 1
        return [
            snapshot
            for index, snapshot in enumerate(snapshots[:-1])
            if snapshot.handle not in kept and self._is_over(snapshot, newer=last - index, now=now)
        ]

    def _is_over(self, snapshot: Snapshot, *, newer: int, now: float) -> bool:
        return (
            (self.keep_last is not None and newer >= self.keep_last)
            or (self.max_age is not None and now - snapshot.created_at > self.max_age)
            or (snapshot.expires_at is not None and now > snapshot.expires_at)
        )
