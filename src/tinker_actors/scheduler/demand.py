"""What a configuration's job is and needs."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

from tinker_actors.scheduler.config import RunConfig
from tinker_actors.scheduler.inference_config import InferenceConfig
from tinker_actors.scheduler.job_records import JobRequest
from tinker_actors.scheduler.league import SIZE as LEAGUE_SIZE
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


def need_of(config: JobConfig, *, devices: int = 0, memory: int = 0, pool: int | None = None) -> Resources:
    """What a job holds while it runs.

    Args:
        config: The job.
        devices: Accelerators that it is to have.
        memory: Bytes of the host's memory that it is to have; 0 if that isn't accounted for.
        pool: Processes of each worker's environments; what the configuration says, if not known better.

    Returns:
        With a CPU worker for each thread of the trainer and sampler, one for each worker of rollouts or evaluations and
        one for each process of their environments; and with an adapter slot for each adapter that is served at once.
    """
    threads = threads_of(config)
    if isinstance(config, SftConfig):
        lora = int(config.policy.kind == "lora")
        return Resources(devices=devices, memory=memory, adapter_slots=lora, cpu_workers=threads)
    if isinstance(config, InferenceConfig):
        return Resources(devices=devices, memory=memory, adapter_slots=1, cpu_workers=threads)
    workers, validators = config.rollouts.workers, config.evaluation.workers
    if pool is None:
        pool = config.environment.pool or int(config.environment.isolation == "process")
    pools = (max(workers, 1) + validators) * pool
    return Resources(
        devices=devices,
        memory=memory,
        adapter_slots=_adapters_of(config),
        cpu_workers=threads + workers + validators + pools,
    )


def threads_of(config: JobConfig) -> int:
    """Threads that compute in the process of a job's trainer and sampler."""
    return config.sampling.threads if isinstance(config, InferenceConfig) else config.trainer.threads


def _adapters_of(config: RunConfig) -> int:
    """Adapters that the sampler of an RL job serves at once.

    Those of the policies that learn, as many versions of each as rollouts are ahead; frozen ones; and the members of
    leagues. Fewer have a place where `sampler.local.max_adapters` says so, but each policy that learns needs one.
    """
    kinds = {name: settings.policy.kind for name, settings in config.learners().items()}
    learning = sum(kind == "lora" for kind in kinds.values())
    frozen: set[str] = set()
    members = 0
    for seat in (*config.seats.values(), *config.evaluation.seats.values()):
        if seat.store is None and kinds.get(seat.policy or "") == "full":
            continue
        if seat.player == "snapshot":
            frozen.add(seat.frozen_name)
        elif seat.player == "league":
            members += seat.size or LEAGUE_SIZE
    served = learning * (1 + config.steps_ahead) + len(frozen) + members
    most = config.sampler.local.max_adapters if config.sampler.backend == "local" else None
    return served if most is None else max(learning, min(served, most))


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
