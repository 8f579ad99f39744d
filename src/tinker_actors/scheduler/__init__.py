"""Jobs: what a run is, and what runs one. Torch is loaded once a job begins."""

from __future__ import annotations

from tinker_actors.scheduler.config import RunConfig
from tinker_actors.scheduler.inference_config import InferenceConfig
from tinker_actors.scheduler.jobs import check_job, program_of, run_job
from tinker_actors.scheduler.loading import JobConfig, load_config, parse_config
from tinker_actors.scheduler.observer import InferenceSummary, Phase, RunObserver, RunSummary, SftSummary, Summary
from tinker_actors.scheduler.run_folder import RunFolder, RunState, find_runs
from tinker_actors.scheduler.sft_config import SftConfig

__all__ = [
    "InferenceConfig",
    "InferenceSummary",
    "JobConfig",
    "Phase",
    "RunConfig",
    "RunFolder",
    "RunObserver",
    "RunState",
    "RunSummary",
    "SftConfig",
    "SftSummary",
    "Summary",
    "check_job",
    "find_runs",
    "load_config",
    "parse_config",
    "program_of",
    "run_job",
]
