"""Jobs: what a run is, and the task server that runs one. Names that need torch resolve on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinker_actors.lazy import lazy_names
from tinker_actors.scheduler.checks import check_job
from tinker_actors.scheduler.config import RunConfig
from tinker_actors.scheduler.loading import load_config, parse_config
from tinker_actors.scheduler.observer import Phase, RunObserver, RunSummary
from tinker_actors.scheduler.run_folder import RunFolder, RunState, find_runs

if TYPE_CHECKING:
    from tinker_actors.scheduler.task_server import run_job

__all__ = [
    "Phase",
    "RunConfig",
    "RunFolder",
    "RunObserver",
    "RunState",
    "RunSummary",
    "check_job",
    "find_runs",
    "load_config",
    "parse_config",
    "run_job",
]

__getattr__ = lazy_names(__name__, {"run_job": "task_server"})
