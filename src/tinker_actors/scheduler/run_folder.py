"""A run's folder: what it holds, how a new one is made and how an interrupted one is taken up again."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import tomli_w

from tinker_actors.errors import ConfigError, RunError
from tinker_actors.policies import SnapshotStore
from tinker_actors.policies.local_place import base_beside
from tinker_actors.scheduler.loading import JobConfig, load_config
from tinker_actors.scheduler.versions import Version
from tinker_actors.telemetry import keep_records

State = TypeVar("State")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyState:
    """Where one policy stands.

    Attributes:
        checkpoint: Handle of its training state.
        baselines: What its advantage estimator remembers of the steps so far.
    """

    checkpoint: str
    baselines: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """From where an interrupted run goes on.

    Attributes:
        step: Update steps done.
        base_model: What the policies stand on: the configured model, or the folder that a full warm-up wrote.
        eval_before: Mean reward of the first evaluation.
        seconds: Wall time spent so far.
        policies: Every learning policy's state after that step, by its id.
        versions: What the groups in flight and those to come are played with, oldest first; the last is what there was
            after that step.
        frozen: Handles of the snapshots that play frozen seats, by what their tables call them.
    """

    step: int
    base_model: str
    eval_before: float
    seconds: float
    policies: Mapping[str, PolicyState] = field(default_factory=dict[str, PolicyState])
    versions: tuple[Version, ...] = ()
    frozen: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def handles(self) -> tuple[str, ...]:
        """Snapshots that the run can't go on without."""
        played = [handle for version in self.versions for handle in version.handles]
        return tuple(dict.fromkeys((*played, *self.frozen.values())))


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths within a run folder."""

    root: Path

    @property
    def config(self) -> Path:
        """The resolved configuration."""
        return self.root / "config.toml"

    @property
    def metrics(self) -> Path:
        """One record per step and per evaluation."""
        return self.root / "metrics.jsonl"

    @property
    def rollouts(self) -> Path:
        """Readable transcripts with rewards."""
        return self.root / "rollouts.jsonl"

    @property
    def log(self) -> Path:
        """What the run's process logged."""
        return self.root / "run.log"

    @property
    def plot(self) -> Path:
        """The reward curve."""
        return self.root / "reward.png"

    @property
    def loss_plot(self) -> Path:
        """The loss curve of a supervised run."""
        return self.root / "loss.png"

    @property
    def examples(self) -> Path:
        """Which examples each step of a supervised run was trained on."""
        return self.root / "examples.jsonl"

    @property
    def skipped(self) -> Path:
        """Which lines a supervised run leaves out, and why."""
        return self.root / "skipped.jsonl"

    @property
    def replies(self) -> Path:
        """What an inference run sampled: a record for each prompt, in order."""
        return self.root / "replies.jsonl"

    @property
    def summary(self) -> Path:
        """The result in a few numbers; written last."""
        return self.root / "summary.json"

    @property
    def state(self) -> Path:
        """From where to go on."""
        return self.root / "state.json"

    @property
    def base(self) -> Path:
        """The base model that a full warm-up made."""
        return self.root / "base"

    @property
    def policies(self) -> Path:
        """Snapshots and checkpoints."""
        return self.root / "policies"

    @staticmethod
    def check_free(config: JobConfig) -> None:
        """Refuse what `create` would refuse of a folder that is there; nothing is written.

        Raises:
            RunError: The folder holds something.
        """
        if config.output and Path(config.output).is_dir():
            _refuse_taken(Path(config.output))

    @classmethod
    def create(cls, config: JobConfig) -> RunFolder:
        """Make the folder of a new run and write its configuration.

        Raises:
            RunError: The folder can't be written, or already holds something.
        """
        root = Path(config.output) if config.output else _fresh(Path("runs") / config.name)
        try:
            root.mkdir(parents=True, exist_ok=True)
            _refuse_taken(root)
            folder = cls(root)
            plain = config.model_dump(mode="json", exclude_none=True)
            write_atomically(folder.config, tomli_w.dumps(plain))
        except OSError as error:
            raise RunError(f"run folder {root} can't be written: {error.strerror or error}") from None
        return folder

    def discard_refused(self, *, keep_root: bool) -> None:
        """Remove what a new run that was refused has left, unless it has saved a state.

        Args:
            keep_root: Whether the folder itself stays, empty: it was there before.
        """
        if self.state.exists():
            return
        for path in self.root.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if not keep_root:
            self.root.rmdir()

    @contextmanager
    def held(self) -> Generator[None]:
        """Within it no other run may write here; the hold ends with the process, however that ends.

        Raises:
            RunError: Another run holds it.
        """
        folder = os.open(self.root, os.O_RDONLY)
        try:
            # file systems without such locks do without
            with contextlib.suppress(OSError):
                try:
                    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise RunError(
                        f"run folder {self.root} is in use by a run that goes on; `tinker-actors ps` lists those"
                    ) from None
            yield
        finally:
            os.close(folder)

    def load_config(self, overrides: tuple[str, ...] = ()) -> JobConfig:
        """The run's configuration.

        Raises:
            ConfigError: The folder is not a run's, or the configuration can't work.
        """
        if not self.config.is_file():
            raise ConfigError(f"{self.root} is not a run folder: it has no {self.config.name}")
        return load_config(self.config, overrides)

    def saved_state(self) -> dict[str, Any] | None:
        """What `state.json` holds, or None if nothing was saved yet.

        Raises:
            RunError: The file is damaged.
        """
        if not self.state.exists():
            return None
        try:
            return json.loads(self.state.read_text())
        except ValueError as error:
            raise RunError(f"{self.state}: not valid JSON: {error}") from error

    def load_state(self) -> RunState | None:
        """Where the run stands, or None if it has no finished step to go on from.

        Raises:
            RunError: The file is damaged.
        """
        return self.restored(self._run_state)

    def _run_state(self, data: dict[str, Any]) -> RunState:
        data["base_model"] = base_beside(self.policies.resolve(), data["base_model"])
        policies = {name: PolicyState(**plain) for name, plain in data.pop("policies").items()}
        versions = tuple(Version.of(plain) for plain in data.pop("versions"))
        return RunState(**data, policies=policies, versions=versions)

    def restored(self, make: Callable[[dict[str, Any]], State]) -> State | None:
        """What `make` makes of what was saved, or None if nothing was.

        Raises:
            RunError: The file is damaged, or of a run of another kind.
        """
        if (data := self.saved_state()) is None:
            return None
        try:
            return make(data)
        except (AttributeError, KeyError, TypeError) as error:
            raise RunError(
                f"{self.state}: no state that such a run goes on from ({type(error).__name__}: {error})"
            ) from error

    def save_state(self, state: RunState) -> None:
        """Record where the run stands; atomic."""
        write_atomically(self.state, json.dumps(asdict(state), indent=1))

    def discard_unfinished_start(self) -> None:
        """Remove the models of a start that was interrupted before its first saved state."""
        for path in (self.base, self.policies):
            if path.exists():
                shutil.rmtree(path)

    def sweep(self) -> None:
        """Remove what writers that were killed left half written; nothing refers to it."""
        SnapshotStore(self.policies).sweep()
        for path in self.root.glob(".*.partial"):
            path.unlink(missing_ok=True)

    def forget_after(self, step: int) -> None:
        """Drop the records of steps past `step`: they will be made again."""
        for path in (self.metrics, self.rollouts, self.examples):
            if path.exists():
                keep_records(path, lambda record: record["step"] <= step)


def find_runs(parent: Path) -> list[Path]:
    """The run folders directly under a folder, oldest first."""
    if not parent.is_dir():
        return []
    return sorted(path for path in parent.iterdir() if (path / "config.toml").is_file() and not path.is_symlink())


def write_atomically(path: Path, text: str) -> None:
    """Write a whole text or nothing, durably; if it fails, what was there stays."""
    temporary = path.with_name(f".{path.name}.partial")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # else a crash of the machine may undo the renaming
    finally:
        os.close(folder)


def _refuse_taken(root: Path) -> None:
    if any(root.iterdir()):
        raise RunError(f"run folder {root} is not empty; give another with --output, or --resume to go on with it")


def _fresh(parent: Path) -> Path:
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    candidate, number = parent / stamp, 1
    while candidate.exists():
        number += 1
        candidate = parent / f"{stamp}-{number}"
    return candidate
