"""A run as a live screen: phase, step, reward curve, numbers, last transcript."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tinker_actors.console.curve import draw_curve
from tinker_actors.console.report import print_report
from tinker_actors.console.shown import measures, outcomes, policy_rows, step_numbers
from tinker_actors.scheduler.observer import Phase, Summary


class LiveView:
    """Redraws in place while used as a context manager; prints the report at the end."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._title = ""
        self._folder = Path()
        self._phase, self._phase_step, self._phase_total = Phase.START, 0, 0
        self._done, self._expected = 0, 0
        self._step, self._total, self._unit = 0, 0, "step"
        self._metrics: dict[str, float] = {}
        self._values: dict[str, list[float]] = {}
        self._counted = "episodes"
        self._evaluations: list[float] = []
        self._outcomes: dict[str, str] = {}
        self._transcripts: dict[str, str] = {}
        self._last_transcript = ""
        self._notes: deque[str] = deque(maxlen=3)
        self._began = time.monotonic()
        self._live = Live(console=console, refresh_per_second=8, transient=True, get_renderable=self._render)

    def __enter__(self) -> LiveView:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, traceback)

    def started(self, title: str, folder: Path, total: int, resumed_at: int, unit: str = "step") -> None:
        """Remember what runs."""
        self._title, self._folder, self._total, self._step = title, folder, total, resumed_at
        self._unit = unit

    def phase(self, phase: Phase, step: int, total: int) -> None:
        """Show the phase."""
        self._phase, self._phase_step, self._phase_total = phase, step, total
        if phase is Phase.SAMPLE:  # what is counted there are the run's own units
            self._step = step
        self._done = self._expected = 0

    def progress(self, done: int, total: int) -> None:
        """Show the episodes, lines or examples that are done."""
        self._done, self._expected = done, total

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add a point to the curve."""
        self._step, self._metrics = step, dict(metrics)
        for title, value in measures(metrics).items():
            self._values.setdefault(title, []).append(value)

    def evaluated(
        self, step: int, value: float, measure: str = "reward", more: Mapping[str, float] | None = None
    ) -> None:
        """Show the newest evaluations."""
        self._evaluations.append(value)
        self._outcomes = outcomes(more or {})

    def transcript(self, label: str, text: str) -> None:
        """Show an episode."""
        self._transcripts[label] = text
        self._last_transcript = text

    def note(self, text: str) -> None:
        """Keep the newest notes in sight."""
        self._notes.append(text)

    def finished(self, summary: Summary, folder: Path) -> None:
        """Take the screen down and print the report."""
        self._live.stop()
        print_report(self._console, summary, folder, self._values, self._transcripts)

    def _render(self) -> RenderableType:
        parts: list[RenderableType] = [self._header(), self._bar(), Text()]
        height = max(8 // max(len(self._values), 1), 2)
        for title, values in self._values.items():
            rows = draw_curve(values, width=min(self._console.width - 7, 100), height=height)
            parts += [Text(title, style="bold"), *map(Text, rows)]
        if self._values:
            parts += [Text(), _table([step_numbers(self._metrics, self._evaluations)])]
            if rows := policy_rows(self._metrics):
                parts += [Text(), _table(rows)]
        parts += [Text(f"evaluation: {seat} {shares}", style="dim") for seat, shares in self._outcomes.items()]
        if self._last_transcript:
            lines = self._last_transcript.splitlines()
            shown = lines[:12] + ([f"... {len(lines) - 12} more lines"] if len(lines) > 12 else [])
            parts += [Text(), Text("last transcript", style="bold"), Text("\n".join(shown))]
        parts += [Text(f"! {note}", style="yellow") for note in self._notes]
        # a terminal writes ^C where the cursor stands: with no room for it there, it would scroll the screen by a line
        width = self._console.width - 3
        return Panel(Group(*parts), title=self._title, subtitle=str(self._folder), title_align="left", width=width)

    def _header(self) -> Text:
        within = f" {self._phase_step}/{self._phase_total}" if self._phase_total else ""
        what = "lines" if self._phase is Phase.DATA else self._counted
        done = f"  {what} {self._done}/{self._expected}" if self._expected else ""
        seconds = time.monotonic() - self._began
        return Text.assemble(
            (f"{self._phase.value}{within}", "bold cyan"),
            f"{done}  {self._unit} {self._step}/{self._total}  {seconds:.0f} s",
        )

    def _bar(self) -> RenderableType:
        warming = self._phase in (Phase.WARMUP, Phase.SAMPLE)
        done, total = (self._phase_step, self._phase_total) if warming else (self._step, self._total)
        return ProgressBar(total=max(total, 1), completed=done, width=min(self._console.width - 7, 100))


def _table(rows: Sequence[Mapping[str, str]]) -> RenderableType:
    table = Table.grid(padding=(0, 3))
    for _ in rows[0]:
        table.add_column()
    table.add_row(*[Text(name, style="dim") for name in rows[0]])
    for row in rows:
        table.add_row(*map(Text, row.values()))
    return table
