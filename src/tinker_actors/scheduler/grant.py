"""What a job may use: its scheduler tells its processes, and these keep to it.

The grant travels in the environment of a job's task server. That refuses a configuration that needs more, computes with
the threads that it says and lets all other processes of the job, which inherit the environment, have one each.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, replace

from tinker_actors.environments import load_environment
from tinker_actors.errors import ConfigError
from tinker_actors.scheduler.checks import pool_size
from tinker_actors.scheduler.config import RunConfig
from tinker_actors.scheduler.demand import need_of, threads_of
from tinker_actors.scheduler.loading import JobConfig
from tinker_actors.scheduler.resources import Allocation, Resources

VARIABLE = "TINKER_ACTORS_GRANT"

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "RAYON_NUM_THREADS")
"""What libraries read the number of their threads from."""


def environment_of(allocation: Allocation, capacity: Resources) -> dict[str, str]:
    """Environment variables of a job's task server.

    Args:
        allocation: What the job holds.
        capacity: All that there is: without devices in it, the job's libraries see those that they find.
    """
    granted = allocation.amount
    found = {VARIABLE: json.dumps(asdict(granted)), **dict.fromkeys(THREADS, str(max(1, granted.cpu_workers)))}
    if capacity.devices:
        found["CUDA_VISIBLE_DEVICES"] = ",".join(str(device) for device in allocation.devices)
    return found


def granted(environment: Mapping[str, str] = os.environ) -> Resources | None:
    """What this process's scheduler has granted; None where there is none."""
    text = environment.get(VARIABLE)
    return Resources(**json.loads(text)) if text is not None else None


def within(config: JobConfig, grant: Resources) -> JobConfig:
    """A configuration that keeps to a grant: its sampler holds no more adapters at once than there are slots.

    Raises:
        ConfigError: It needs more, or its environment does by itself; says what, and what was granted.
    """
    pool = None
    if isinstance(config, RunConfig):
        pool = pool_size(config, load_environment(config.environment.name, **config.environment.options))
    need = need_of(config, pool=pool)
    for name in ("cpu_workers", "adapter_slots"):
        asked, most = getattr(need, name), getattr(grant, name)
        if asked > most:
            raise ConfigError(
                f"the job needs resources.{name} {asked}, and was granted {most}; ask for {asked} "
                "(environment.isolation counts if it is given), or let it need less"
            )
    if not isinstance(config, RunConfig) or not grant.adapter_slots:
        return config
    sampler, slots = config.sampler, grant.adapter_slots
    if sampler.backend == "vllm":
        bound = {"vllm": replace(sampler.vllm, max_loras=min(sampler.vllm.max_loras, slots))}
    else:
        bound = {"local": replace(sampler.local, max_adapters=min(sampler.local.max_adapters or slots, slots))}
    return config.model_copy(update={"sampler": sampler.model_copy(update=bound)})


def use_threads_of(config: JobConfig) -> None:
    """Let torch compute with a job's threads here, and each process that is started from now on with one."""
    import torch

    torch.set_num_threads(threads_of(config))
    os.environ.update(dict.fromkeys(THREADS, "1"))
