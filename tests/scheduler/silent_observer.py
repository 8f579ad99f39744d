"""An observer that shows nothing and remembers the steps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tinker_actors.scheduler import Phase, RunSummary


class Silent:
    """Remembers the steps."""

    def __init__(self) -> None:
        self.steps: list[Mapping[str, float]] = []

    def started(self, title: str, folder: Path, total: int, resumed_at: int, unit: str = "step") -> None: ...
    def phase(self, phase: Phase, step: int, total: int) -> None: ...
    def progress(self, done: int, total: int) -> None: ...
    def evaluated(self, step: int, value: float, *more: object) -> None: ...
    def transcript(self, label: str, text: str) -> None: ...
    def note(self, text: str) -> None: ...
    def finished(self, summary: RunSummary, folder: Path) -> None: ...

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        self.steps.append(metrics)
