"""Rollouts that are played while earlier steps are trained on: which step plays with which version, and when.

Version v is what was published after v steps: a snapshot of every policy. The rollouts of step s are sampled with
version s - 1 - ahead (version 0 for the first steps), and begin as soon as it is published. So nothing that is sampled
depends on how long anything takes, no group is staler than `ahead` steps, and none is thrown away: the producer waits
for the trainer and the trainer for the producer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from tinker_actors.rollouts import Collected
from tinker_actors.scheduler.versions import Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One step's rollouts.

    Attributes:
        collected: Their groups.
        began: When they began, in seconds of `time.monotonic`.
        ended: When the last result was in.
    """

    collected: Collected
    began: float
    ended: float


class Ahead:
    """Plays the rollouts of each step with the version that the step's number names.

    Args:
        play: Collects a step's rollouts with a version.
        ahead: How many steps the rollouts may be ahead; 0 plays a step only when it is asked for.
        last: The last step of the run.
        versions: Those that are known, by the steps before them; the highest is the newest.
    """

    def __init__(
        self,
        play: Callable[[int, Version], Awaitable[Collected]],
        *,
        ahead: int,
        last: int,
        versions: Mapping[int, Version],
    ) -> None:
        self._play, self._ahead, self._last = play, ahead, last
        self._versions = dict(versions)
        self._tasks: dict[int, asyncio.Task[Played]] = {}

    @property
    def bound(self) -> tuple[Version, ...]:
        """The versions that steps under way or to come are played with, oldest first; the last is the newest."""
        return tuple(self._versions[number] for number in sorted(self._versions))

    def begin(self) -> None:
        """Begin whatever may begin before it is asked for."""
        if self._ahead:
            newest = max(self._versions)
            for step in range(newest + 1, min(newest + 1 + self._ahead, self._last) + 1):
                self._begin(step)

    def published(self, number: int, version: Version) -> None:
        """A version is the newest from now on."""
        self._versions[number] = version
        for old in [known for known in self._versions if known < number - self._ahead]:
            del self._versions[old]

    async def take(self, step: int) -> Played:
        """A step's rollouts, once they are all in.

        Raises:
            RunError: As `Crew.play`.
        """
        self._begin(step)
        try:
            return await self._tasks[step]
        finally:
            del self._tasks[step]

    async def stop(self) -> None:
        """End what is under way."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _begin(self, step: int) -> None:
        if step in self._tasks:
            return
        # a run that was resumed with a larger `ahead` lacks the older versions: the next newer one is less stale
        wanted = max(0, step - 1 - self._ahead)
        number = min(known for known in self._versions if known >= wanted)
        played = self._played(step, self._versions[number], time.monotonic())
        self._tasks[step] = asyncio.create_task(played, name=f"rollouts of step {step}")

    async def _played(self, step: int, version: Version, began: float) -> Played:
        collected = await self._play(step, version)
        return Played(collected=collected, began=began, ended=time.monotonic())
