"""What a configuration's job is and needs."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

from tinker_actors.scheduler.inference_config import InferenceConfig
from tinker_actors.scheduler.job_records import JobRequest
from tinker_actors.scheduler.loading import JobConfig
from tinker_actors.scheduler.resources import Resources
from tinker_actors.scheduler.sft_config import SftConfig
from tinker_actors.scheduler.states import JobKind


def kind_of(config: JobConfig) -> JobKind:
    """What a job does: an RL job without a step to train is an evaluation."""
    if isinstance(config, SftConfig):
        return JobKind.SFT
    if isinstance(config, InferenceConfig):
        return JobKind.INFERENCE
    if not config.trainer.steps and config.warmup.method == "none":
        return JobKind.EVALUATION
    full = any(settings.policy.kind == "full" for settings in config.learners().values())
    return JobKind.RL_FULL if full else JobKind.RL_LORA


def need_of(config: JobConfig, *, devices: int = 0, memory: int = 0) -> Resources:
    """What a job holds while it runs.

    Args:
        config: The job.
        devices: Accelerators that it is to have.
        memory: Bytes of the host's memory that it is to have; 0 if that isn't accounted for.

    Returns:
        With a CPU worker for the trainer and sampler, one for each worker of rollouts or evaluations and one for each
        process of their environments, and an adapter slot for each policy that is an adapter.
    """
    if isinstance(config, SftConfig):
        return Resources(devices=devices, memory=memory, adapter_slots=int(config.policy.kind == "lora"), cpu_workers=1)
    if isinstance(config, InferenceConfig):
        adapters = int(config.sampling.snapshot is not None)
        return Resources(devices=devices, memory=memory, adapter_slots=adapters, cpu_workers=1)
    workers, validators = config.rollouts.workers, config.evaluation.workers
    adapters = sum(settings.policy.kind == "lora" for settings in config.learners().values())
    pool = config.environment.pool or int(config.environment.isolation == "process")
    pools = (max(workers, 1) + validators) * pool
    return Resources(
        devices=devices, memory=memory, adapter_slots=adapters, cpu_workers=1 + workers + validators + pools
    )


def request_of(
    config: JobConfig,
    *,
    directory: Path | None = None,
    devices: int = 0,
    memory: int = 0,
    tenant: str = "local",
    priority: int = 0,
    key: str | None = None,
) -> JobRequest:
    """A configuration as what is submitted.

    Args:
        config: The job. Its `output` is not used: the scheduler gives each job a folder.
        directory: What its paths are relative to; the working directory if None.
        devices: Accelerators that it is to have.
        memory: Bytes of the host's memory that it is to have.
        tenant: Whose it is.
        priority: Higher ones go first.
        key: Makes the submission idempotent.
    """
    return JobRequest(
        kind=kind_of(config),
        name=config.name,
        config=config.model_dump(mode="json", exclude_none=True, exclude={"output"}),
        directory=str((directory or Path.cwd()).resolve()),
        need=need_of(config, devices=devices, memory=memory),
        tenant=tenant,
        priority=priority,
        key=key,
    )


def machine(*, devices: int = 0, adapter_slots: int = 64, cpu_workers: int | None = None) -> Resources:
    """What this machine has.

    Args:
        devices: Accelerators that jobs may have.
        adapter_slots: Adapters at a time, over all jobs.
        cpu_workers: Processes that compute; four for each processor that this process may use, if None, since most of
            them wait most of the time.
    """
    workers = cpu_workers if cpu_workers is not None else 4 * len(os.sched_getaffinity(0))
    return Resources(
        devices=devices, memory=psutil.virtual_memory().total, adapter_slots=adapter_slots, cpu_workers=workers
    )
