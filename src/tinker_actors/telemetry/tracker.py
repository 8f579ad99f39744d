"""Trackers: where a run's numbers go besides its own folder, such as TensorBoard or Weights & Biases.

A tracker is three blocking calls. `Tracking` makes them on a thread of the tracker's own, so that a slow disk or
network costs the run nothing, and a tracker that raises is left out from there on, with a word about it: it never fails
the run.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

logger = logging.getLogger(__name__)

Status: TypeAlias = Literal["succeeded", "failed", "cancelled"]
"""How a run ended."""

_ROOM = 4096
"""Steps that may wait for a tracker; beyond them new ones are dropped and counted."""


class Tracker(Protocol):
    """One place that numbers go to. Its calls come from one thread, in order, `start` first and `finish` last."""

    def start(self, config: Mapping[str, Any]) -> None:
        """The run begins, or goes on; `config` is its configuration as plain data."""
        ...

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Numbers of a step; finite ones only, and steps never fall, unless the run went on from an earlier one."""
        ...

    def finish(self, status: Status) -> None:
        """The run has ended."""
        ...


@dataclass(frozen=True, slots=True)
class _Finish:
    status: Status


class _Lane:
    """A tracker's own thread."""

    def __init__(self, name: str, tracker: Tracker, config: Mapping[str, Any], note: Callable[[str], None]) -> None:
        self.name = name
        self._tracker, self._config, self._note = tracker, config, note
        self._queue: queue.Queue[tuple[int, Mapping[str, float]] | _Finish] = queue.Queue(_ROOM)
        self._dropped = 0
        self._failed = False
        self._thread = threading.Thread(target=self._run, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Hand numbers over, unless the tracker is left out."""
        if self._failed:
            return
        try:
            self._queue.put_nowait((step, metrics))
        except queue.Full:
            self._dropped += 1

    def finish(self, status: Status) -> None:
        """Hand the end over, unless the tracker is left out; `join` waits for it."""
        if self._failed:
            return
        try:
            self._queue.put(_Finish(status), timeout=0.1)
        except queue.Full:
            self._dropped += 1

    def join(self, seconds: float) -> None:
        """Wait for the tracker to have all."""
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._note(f"tracker {self.name} hasn't taken everything after {seconds:g} s")
        elif self._dropped and not self._failed:
            self._note(f"tracker {self.name} was too slow: {self._dropped} of its steps were dropped")

    def _run(self) -> None:
        try:
            self._tracker.start(self._config)
            while not isinstance(said := self._queue.get(), _Finish):
                self._tracker.log(*said)
            self._tracker.finish(said.status)
        except Exception as error:  # the boundary to trackers: whatever it is, the run goes on without this one
            self._failed = True
            logger.warning("tracker %s failed", self.name, exc_info=True)
            self._note(f"tracker {self.name} failed and is left out from here on: {type(error).__name__}: {error}")


class Tracking:
    """Several trackers at once; every call but `finish` returns at once, and none raises.

    Args:
        trackers: By what notes call them.
        config: The run's configuration, as plain data.
        note: Told, from any thread, what a person should know.
    """

    def __init__(
        self,
        trackers: Mapping[str, Tracker],
        config: Mapping[str, Any],
        *,
        note: Callable[[str], None] = logger.warning,
    ) -> None:
        self._lanes: Sequence[_Lane] = [_Lane(name, tracker, config, note) for name, tracker in trackers.items()]

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Numbers of a step; what isn't finite is left out, since not every tracker can hold it."""
        finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
        for lane in self._lanes:
            lane.log(step, finite)

    def finish(self, status: Status, *, seconds: float = 30.0) -> None:
        """The run has ended; waits at most so long for each tracker to have everything."""
        for lane in self._lanes:
            lane.finish(status)
        for lane in self._lanes:
            lane.join(seconds)
