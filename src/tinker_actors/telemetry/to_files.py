"""Trackers that write files: JSON lines, and TensorBoard's event files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinker_actors.telemetry.jsonl import JsonlWriter
from tinker_actors.telemetry.tracker import Status

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class JsonlTracker:
    """One JSON object for each step, and one for how the run ended.

    Args:
        path: The file, which is appended to.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def start(self, config: Mapping[str, Any]) -> None:
        """Open the file; the configuration is its first line."""
        self._writer = JsonlWriter(self._path)
        self._writer.write({"config": dict(config)})

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append a line."""
        self._writer.write({"step": step, **metrics})

    def finish(self, status: Status) -> None:
        """Append the last line."""
        self._writer.write({"status": status})
        self._writer.close()


class TensorBoardTracker:
    """Event files for `tensorboard --logdir FOLDER`; needs the extra `tensorboard`.

    Args:
        folder: Gets the files.
        resumed_at: The step that the run goes on from: what earlier files have past it is hidden.
    """

    def __init__(self, folder: Path, *, resumed_at: int = 0) -> None:
        self._folder, self._resumed_at = folder, resumed_at

    def start(self, config: Mapping[str, Any]) -> None:
        """Open a new event file; the configuration is its text `config`."""
        from torch.utils.tensorboard import SummaryWriter

        purge = self._resumed_at + 1 if self._resumed_at else None
        self._writer: SummaryWriter = SummaryWriter(str(self._folder), purge_step=purge)
        self._writer.add_text("config", f"```json\n{json.dumps(config, indent=1)}\n```", self._resumed_at)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """A scalar for each number."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def finish(self, status: Status) -> None:
        """Close the file."""
        self._writer.add_text("status", status)
        self._writer.close()
