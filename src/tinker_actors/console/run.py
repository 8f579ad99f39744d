"""`tinker-actors run`: from a target on the command line to a finished run."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from tinker_actors.console.live import LiveView
from tinker_actors.console.plain import PlainView
from tinker_actors.console.signals import leave_at_once, left_at_once_by_signals, until_done_or_signalled
from tinker_actors.environments import Environment, load_environment
from tinker_actors.errors import FULL_DISK, ConfigError, DataError, ModelError
from tinker_actors.scheduler import (
    JobConfig,
    RunConfig,
    RunFolder,
    check_job,
    find_runs,
    load_config,
    program_of,
    run_job,
)
from tinker_actors.scheduler.loading import read_config

_PATIENCE = 4.0
"""Seconds that a stopped run has to clean up."""

_TINY_LEARNING_RATE = 3e-3
"""For the tiny model that plays where none is named: at a large model's rate it would learn nothing in sixty steps."""


def run_command(target: str, overrides: Sequence[str], *, plain: bool, resume: bool) -> int:
    """Start or resume the run that `target` names and watch it to its end.

    Returns:
        The exit code.

    Raises:
        ConfigError: The target or the configuration can't work.
        RunError: The run folder can't be used.
    """
    folder, config = _resume(target, overrides) if resume else (None, _checked(target, overrides))
    with left_at_once_by_signals():  # one that came while the loop loads it would be heard only afterwards
        program_of(config)
    new = folder is None
    there = new and bool(config.output) and Path(config.output).is_dir()
    # only now: of a start that is given up meanwhile nothing is left, which `--resume` would take for the newest run
    folder = folder or RunFolder.create(config)
    console = Console()
    logging.basicConfig(
        filename=folder.log, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    # not closed when stopped: closing waits for compute threads, which can't be cancelled
    runner = asyncio.Runner()
    try:
        with ExitStack() as stack:
            plain = plain or not console.is_terminal or _has_person(config)
            view = PlainView(console) if plain else stack.enter_context(LiveView(console))
            received = runner.run(until_done_or_signalled(run_job(config, folder, view), told=_hurry, leave=_leave))
    except BaseException as error:  # an interrupt too ends the loop properly
        runner.close()
        if new and isinstance(error, ConfigError | DataError | ModelError):
            folder.discard_refused(keep_root=there)
        if isinstance(error, OSError) and error.errno in FULL_DISK:
            raise _made_room_for(error, folder) from error
        raise
    if received is not None:
        again = f"stopped by {signal.Signals(received).name}; go on with: tinker-actors run {folder.root} --resume"
        console.print(again, markup=False, highlight=False, soft_wrap=True)
        _leave(128 + received)
    runner.close()
    return 0


def _made_room_for(error: OSError, folder: RunFolder) -> OSError:
    """The error of a full disk with what to do about it."""
    return OSError(
        error.errno,
        f"{error.strerror}; make room on the disk of {error.filename or folder.root}, then go on with: tinker-actors "
        f"run {folder.root} --resume",
    )


def _has_person(config: JobConfig) -> bool:
    """Whether somebody is to be asked in the terminal, which a live screen would hide."""
    tables = (config.seats, config.evaluation.seats) if isinstance(config, RunConfig) else ()
    return any(section.player == "person" for table in tables for section in table.values())


def _checked(target: str, overrides: Sequence[str]) -> JobConfig:
    config = _config_of(target, overrides)
    check_job(config)
    RunFolder.check_free(config)
    return config


def _config_of(target: str, overrides: Sequence[str]) -> JobConfig:
    if not target:
        raise ConfigError("TARGET is empty; CONFIG.toml or an environment is needed, or with --resume a run folder")
    path = Path(target)
    if path.suffix == ".toml":
        return load_config(path, overrides)
    if path.is_dir():
        raise ConfigError(f"{target} is a folder; go on with a run by --resume, or give a .toml file or an environment")
    defaults = environment_defaults(target)
    model = read_config(None, overrides).get("model", {})
    if isinstance(model, dict) and "name" not in model:
        defaults["trainer"] = {"learning_rate": _TINY_LEARNING_RATE}
    return load_config(None, overrides, defaults=defaults)


def environment_defaults(target: str) -> dict[str, object]:
    """The configuration of a run that was given nothing but an environment, whichever model plays it."""
    environment = load_environment(target)
    demonstrates = environment.environment.demonstrate is not Environment.demonstrate
    warmup = {"method": "full"} if demonstrates else {}
    name = target.partition(":")[0] if ":" in target else target
    return {"name": Path(name).stem, "environment": {"name": target}, "warmup": warmup}


def _resume(target: str, overrides: Sequence[str]) -> tuple[RunFolder, JobConfig]:
    path = Path(target)
    if path.is_dir():
        folder = RunFolder(path)
    elif path.suffix not in (".toml", ".py") and path.name != target and ":" not in target:
        raise ConfigError(f"{target}: no such run folder; one, a .toml file or an environment goes with --resume")
    else:
        config = _config_of(target, overrides)
        runs = [Path(config.output)] if config.output else find_runs(Path("runs") / config.name)[-1:]
        if not runs:
            raise ConfigError(f"there is no run of {config.name!r} under runs/{config.name} to go on with")
        folder = RunFolder(runs[0])
    return folder, folder.load_config(tuple(overrides))


def _hurry(number: int) -> None:
    """End the process if what a signal stopped takes too long to clean up."""
    asyncio.get_running_loop().call_later(_PATIENCE, _leave, 128 + number)


def _leave(code: int) -> NoReturn:
    Console().show_cursor(True)
    leave_at_once(code)
