"""`[tracking]` of a job: which trackers hear of its numbers, besides its own `metrics.jsonl`."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import Field

from tinker_actors.errors import ConfigError
from tinker_actors.scheduler.observer import Phase, RunObserver, Summary
from tinker_actors.scheduler.sections import Section
from tinker_actors.telemetry.to_files import JsonlTracker, TensorBoardTracker
from tinker_actors.telemetry.to_services import TrackioTracker, WandbTracker
from tinker_actors.telemetry.tracker import Status, Tracker, Tracking

if TYPE_CHECKING:
    from tinker_actors.scheduler.config import RunConfig
    from tinker_actors.scheduler.run_folder import RunFolder
    from tinker_actors.scheduler.sft_config import SftConfig

Word: TypeAlias = Annotated[str, Field(min_length=1, max_length=200)]

_PATIENCE: Mapping[Status, float] = {"succeeded": 60.0, "failed": 15.0, "cancelled": 2.0}
"""Seconds that trackers have at the end; somebody who presses Ctrl-C waits for it."""


class WandbSection(Section):
    """Weights & Biases; needs the extra `wandb`."""

    project: Word = "tinker-actors"
    entity: Word | None = None
    """Team or user; the key's own if not given."""
    mode: Literal["online", "offline"] = "online"
    """`offline` writes files below the run folder that `wandb sync` sends later."""
    tags: tuple[Word, ...] = ()


class TrackioSection(Section):
    """Trackio; needs the extra `trackio`."""

    project: Word = "tinker-actors"
    space: Word | None = None
    """A space of a hub that gets the numbers, such as `user/name`; they stay on this machine if not given."""


class TrackingSection(Section):
    """Trackers, as many at once as are named."""

    name: Word | None = None
    """Of the run there; the job's name and a few letters of its own if not given."""
    jsonl: bool = False
    """`tracking.jsonl` in the run folder: what trackers get, as lines."""
    tensorboard: bool = False
    """`tensorboard` in the run folder; needs the extra `tensorboard`."""
    wandb: WandbSection | None = None
    trackio: TrackioSection | None = None

    @property
    def any(self) -> bool:
        """Whether there is any tracker."""
        return self.jsonl or self.tensorboard or self.wandb is not None or self.trackio is not None

    def check(self) -> None:
        """Find out whether the trackers can be had.

        Raises:
            ConfigError: A package is missing; names the extra.
        """
        for name in ("tensorboard", "wandb", "trackio"):
            if getattr(self, name) and importlib.util.find_spec(name) is None:
                raise ConfigError(
                    f"tracking.{name} needs the package {name}, which is not installed: pip install "
                    f"'tinker-actors[{name}]'"
                )

    def trackers(self, folder: Path, job: str, *, resumed_at: int) -> dict[str, Tracker]:
        """The trackers of a run.

        Args:
            folder: Its folder.
            job: The job's name.
            resumed_at: The step that it goes on from; 0 for a new one.
        """
        id = _id_of(folder)
        name = self.name or f"{job}-{id}"
        found: dict[str, Tracker] = {}
        if self.jsonl:
            found["jsonl"] = JsonlTracker(folder / "tracking.jsonl")
        if self.tensorboard:
            found["tensorboard"] = TensorBoardTracker(folder / "tensorboard", resumed_at=resumed_at)
        if (own := self.wandb) is not None:
            found["wandb"] = WandbTracker(
                folder, project=own.project, name=name, id=id, entity=own.entity, mode=own.mode, tags=own.tags
            )
        if (theirs := self.trackio) is not None:
            found["trackio"] = TrackioTracker(project=theirs.project, name=name, space=theirs.space)
        return found


def _id_of(folder: Path) -> str:
    """What names the run to trackers, however often it is resumed."""
    path = folder / "tracking.json"
    if not path.exists():
        path.write_text(json.dumps({"id": secrets.token_hex(4)}))
    return json.loads(path.read_text())["id"]


class _Tracked:
    """An observer that tells trackers what it hears, and another observer everything."""

    def __init__(self, config: RunConfig | SftConfig, observer: RunObserver) -> None:
        self._config, self._observer = config, observer
        self._loop = asyncio.get_running_loop()
        self.tracking: Tracking | None = None

    def started(self, title: str, folder: Path, total: int, resumed_at: int, unit: str = "step") -> None:
        self._observer.started(title, folder, total, resumed_at, unit)
        trackers = self._config.tracking.trackers(folder, self._config.name, resumed_at=resumed_at)
        plain: dict[str, Any] = self._config.model_dump(mode="json", exclude_none=True)
        self.tracking = Tracking(trackers, plain, note=self._note_from_anywhere)

    def phase(self, phase: Phase, step: int, total: int) -> None:
        self._observer.phase(phase, step, total)

    def progress(self, done: int, total: int) -> None:
        self._observer.progress(done, total)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        self._observer.step(step, metrics)
        self._log(step, metrics)

    def evaluated(
        self, step: int, value: float, measure: str = "reward", more: Mapping[str, float] | None = None
    ) -> None:
        if more is None:
            self._observer.evaluated(step, value, measure)
        else:
            self._observer.evaluated(step, value, measure, more)
        found = {measure: value, **(more or {})}
        self._log(step, {f"evaluation/{name}": number for name, number in found.items()})

    def transcript(self, label: str, text: str) -> None:
        self._observer.transcript(label, text)

    def note(self, text: str) -> None:
        self._observer.note(text)

    def finished(self, summary: Summary, folder: Path) -> None:
        self._observer.finished(summary, folder)

    def _log(self, step: int, metrics: Mapping[str, float]) -> None:
        if self.tracking is not None:
            self.tracking.log(step, metrics)

    def _note_from_anywhere(self, text: str) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody listens any more
            self._loop.call_soon_threadsafe(self._observer.note, text)


@asynccontextmanager
async def tracked(
    config: RunConfig | SftConfig, observer: RunObserver, folder: RunFolder
) -> AsyncGenerator[RunObserver]:
    """An observer to run a job with, of which its trackers hear; at the block's end they hear how it ended.

    Args:
        config: The job.
        observer: Hears everything too.
        folder: The run's.
    """
    if not config.tracking.any:
        yield observer
        return
    watching, status = _Tracked(config, observer), "failed"
    try:
        yield watching
        status = "succeeded"
    except asyncio.CancelledError:
        status = "cancelled"
        raise
    finally:
        if watching.tracking is not None:
            await asyncio.to_thread(watching.tracking.finish, status, seconds=_PATIENCE[status])
