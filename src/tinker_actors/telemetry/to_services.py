"""Trackers of services: Weights & Biases, and Trackio. Each needs the extra of its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from tinker_actors.telemetry.tracker import Status


class WandbTracker:
    """A run of Weights & Biases. Who it is written for is in the environment, as W&B has it (`WANDB_API_KEY`).

    Args:
        folder: Where W&B keeps its own files.
        project: Its project.
        name: The run's name there.
        id: Names the run for good: another tracker of the same id goes on with it.
        entity: Team or user; the key's own if None.
        mode: `offline` writes files that `wandb sync` sends later.
        tags: Of the run.
    """

    def __init__(
        self,
        folder: Path,
        *,
        project: str,
        name: str,
        id: str,
        entity: str | None = None,
        mode: Literal["online", "offline"] = "online",
        tags: Sequence[str] = (),
    ) -> None:
        self._arguments: dict[str, Any] = {
            "dir": str(folder),
            "project": project,
            "name": name,
            "id": id,
            "entity": entity,
            "mode": mode,
            "tags": list(tags),
        }

    def start(self, config: Mapping[str, Any]) -> None:
        """Begin the run, or go on with it."""
        wandb = import_module("wandb")
        # its console capture would take over what a live screen writes
        settings = wandb.Settings(console="off", silent=True)
        self._run: Any = wandb.init(config=dict(config), resume="allow", settings=settings, **self._arguments)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """The numbers of a step."""
        self._run.log(dict(metrics), step=step)

    def finish(self, status: Status) -> None:
        """End the run and wait until it is sent or written."""
        self._run.summary["status"] = status
        self._run.finish(exit_code=0 if status == "succeeded" else 1)


class TrackioTracker:
    """A run of Trackio, which keeps its numbers on this machine unless it is given a space.

    Args:
        project: Its project.
        name: The run's name there; another tracker of the same name goes on with it.
        space: A space of a hub that gets them, such as `user/name`; None for none.
    """

    def __init__(self, *, project: str, name: str, space: str | None = None) -> None:
        self._arguments = {"project": project, "name": name, "space_id": space}

    def start(self, config: Mapping[str, Any]) -> None:
        """Begin the run, or go on with it."""
        trackio = import_module("trackio")
        self._run: Any = trackio.init(config=dict(config), resume="allow", embed=False, **self._arguments)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """The numbers of a step."""
        self._run.log(dict(metrics), step=step)

    def finish(self, status: Status) -> None:
        """End the run."""
        self._run.finish()
