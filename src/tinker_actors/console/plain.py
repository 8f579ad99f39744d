"""A run as log lines, for pipes, files and continuous integration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from tinker_actors.console.report import print_report
from tinker_actors.console.shown import counted, evaluation_line, measures, step_line
from tinker_actors.scheduler.observer import Phase, Summary


class PlainView:
    """One line per event; no colours, no cursor movement."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._total = 0
        self._values: dict[str, list[float]] = {}
        self._transcripts: dict[str, str] = {}

    def started(self, title: str, folder: Path, total: int, resumed_at: int, unit: str = "step") -> None:
        """Say what runs and where."""
        self._total = total
        resumed = f", going on after {unit} {resumed_at}" if resumed_at else ""
        self._line(f"{title}: {counted(total, unit)} in {folder}{resumed}")

    def phase(self, phase: Phase, step: int, total: int) -> None:
        """Only the phases that last are worth a line."""
        if phase is Phase.WARMUP and (step == 1 or step == total or step % 10 == 0):
            self._line(f"warm-up step {step}/{total}")
        elif phase is Phase.SAMPLE:
            self._line(f"{step} of {total} prompts are answered")

    def progress(self, done: int, total: int) -> None:
        """Episodes are not worth a line each."""

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """One line per update step."""
        for title, value in measures(metrics).items():
            self._values.setdefault(title, []).append(value)
        self._line(f"step {step}/{self._total}  {step_line(metrics)}")

    def evaluated(
        self, step: int, value: float, measure: str = "reward", more: Mapping[str, float] | None = None
    ) -> None:
        """One line per evaluation."""
        self._line(f"evaluation after step {step}: {evaluation_line(measure, value, more or {})}")

    def transcript(self, label: str, text: str) -> None:
        """Kept for the report."""
        self._transcripts[label] = text

    def note(self, text: str) -> None:
        """A line of its own."""
        self._line(f"note: {text}")

    def finished(self, summary: Summary, folder: Path) -> None:
        """The report."""
        print_report(self._console, summary, folder, self._values, self._transcripts)

    def _line(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
