"""Supervised warm-up on the environment's own demonstrations."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import cast

from tinker_actors.algorithms import demonstration_datums
from tinker_actors.errors import RunError
from tinker_actors.policies import PolicySpec
from tinker_actors.rollouts import DemonstrationSeat
from tinker_actors.scheduler.crew import Crew
from tinker_actors.scheduler.observer import Phase
from tinker_actors.training import AdamParams, LossConfig, Trainer, TrainsPolicies


async def warm_up_base(crew: Crew) -> str:
    """Train all weights of the configured model on demonstrations and write the result as the run's base model.

    Returns:
        The base model's folder.
    """
    trainer = await crew.mesh.spawn(
        Trainer,
        base_model=crew.config.model.name,
        store=str(crew.folder.policies),
        threads=crew.config.trainer.threads,
        device=crew.config.model.device,
        node=0,
    )
    spec = PolicySpec(base_model=crew.config.model.name, kind="full", seed=crew.config.seed, name="warm-up")
    policy = await trainer.create(spec)
    await warm_up(crew, cast(TrainsPolicies, trainer), {policy: crew.environment.environment.seats})
    path = await trainer.export_base(policy, str(crew.folder.base))
    await crew.mesh.stop(trainer)
    return path


async def warm_up(crew: Crew, trainer: TrainsPolicies, policies: Mapping[str, Collection[str]]) -> None:
    """Train policies on demonstrations, fresh ones in every step.

    Args:
        crew: The run's actors.
        trainer: Holds the policies.
        policies: The seats whose demonstrations each learns from.

    Raises:
        RunError: The environment gave no demonstration that could be used.
    """
    settings = crew.config.warmup
    seats = dict.fromkeys(crew.environment.environment.seats, DemonstrationSeat())
    for step in range(1, settings.steps + 1):
        crew.observer.phase(Phase.WARMUP, step, settings.steps)
        collected = await crew.play("warm-up", step=step, groups=settings.episodes_per_step, group_size=1, seats=seats)
        for policy, own in policies.items():
            datums = demonstration_datums(collected.groups, own)
            if not datums:
                cause = f": {collected.failures[0].error}" if collected.failures else ""
                raise RunError(
                    f"the warm-up got no demonstration of {', '.join(own)} from {crew.environment.name}{cause}"
                )
            await trainer.forward_backward(policy, datums, LossConfig(name="cross_entropy"))
            await trainer.optim_step(policy, AdamParams(learning_rate=settings.learning_rate, grad_clip_norm=1.0))
