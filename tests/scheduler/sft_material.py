"""Small data and settings for supervised runs, and an observer that remembers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tinker_actors.scheduler import Phase, SftConfig, SftSummary, load_config

SMALL = [
    *("--job", "sft", "--policy.rank", "4", "--trainer.learning-rate", "1e-2", "--trainer.threads", "1"),
    *("--batch.examples", "4", "--evaluation.every", "3", "--checkpoints.every", "2"),
]


def rows(count: int, *, first: int = 0) -> list[dict[str, Any]]:
    """Conversations of two turns and of different lengths."""
    return [
        {
            "messages": [
                {"role": "user", "content": f"say {number}" + "." * (number % 5)},
                {"role": "assistant", "content": f"{number}"},
                {"role": "user", "content": "again"},
                {"role": "assistant", "content": f"{number} {number}"},
            ]
        }
        for number in range(first, first + count)
    ]


def write(path: Path, entries: list[Any]) -> Path:
    """Write a JSONL file; texts stand for themselves."""
    lines = [entry if isinstance(entry, str) else json.dumps(entry) for entry in entries]
    path.write_text("\n".join(lines) + "\n")
    return path


def settings(folder: Path, *overrides: str, train: int = 14, held: int = 4) -> list[str]:
    """Overrides of a small run on data that is written here."""
    write(folder / "train.jsonl", rows(train))
    named = ["--data.train", str(folder / "train.jsonl")]
    if held:
        write(folder / "held.jsonl", rows(held, first=100))
        named += ["--data.evaluation", str(folder / "held.jsonl")]
    return [*SMALL, *named, *overrides]


def config(folder: Path, *overrides: str, train: int = 14, held: int = 4) -> SftConfig:
    """The configuration of such a run."""
    made = load_config(None, [*settings(folder, train=train, held=held), "--output", str(folder / "run"), *overrides])
    assert isinstance(made, SftConfig)
    return made


class Recorder:
    """Remembers what a run told."""

    def __init__(self) -> None:
        self.phases: list[Phase] = []
        self.steps: dict[int, Mapping[str, float]] = {}
        self.evaluations: list[tuple[int, float]] = []
        self.notes: list[str] = []
        self.planned = 0
        self.summary: SftSummary | None = None

    def started(self, title: str, folder: Path, total: int, resumed_at: int, unit: str = "step") -> None:
        self.planned = total

    def phase(self, phase: Phase, step: int, total: int) -> None:
        if not self.phases or self.phases[-1] is not phase:
            self.phases.append(phase)

    def progress(self, done: int, total: int) -> None: ...

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        self.steps[step] = metrics

    def evaluated(self, step: int, value: float, measure: str = "reward") -> None:
        assert measure == "loss"
        self.evaluations.append((step, value))

    def transcript(self, label: str, text: str) -> None: ...

    def note(self, text: str) -> None:
        self.notes.append(text)

    def finished(self, summary: SftSummary, folder: Path) -> None:
        self.summary = summary
