"""Where a run's policies are trained: in its own process, or at a remote Tinker service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from tinker_actors.actors import Mesh
from tinker_actors.errors import ConfigError, TinkerActorsError
from tinker_actors.policies import PolicySpec, SnapshotStore
from tinker_actors.policies.at_service import path_at_service
from tinker_actors.services.trainer_settings import new_model
from tinker_actors.training import TrainsPolicies

if TYPE_CHECKING:
    from tinker_actors.scheduler.config import RunConfig
    from tinker_actors.scheduler.learners import LearnerSettings
    from tinker_actors.scheduler.players import SeatSection
    from tinker_actors.scheduler.sections import ModelSection, OptimizerSection, PolicySection


async def spawn_trainer(
    mesh: Mesh, trainer: OptimizerSection, *, base_model: str, store: str, device: str
) -> TrainsPolicies:
    """The ref of what trains a run's policies, in this process.

    Args:
        mesh: Where.
        trainer: The run's section.
        base_model: Name of the base model.
        store: The run's snapshot store.
        device: Where it computes, if here.
    """
    if trainer.backend == "tinker":
        from tinker_actors.services.trainer import TinkerTrainer

        return await mesh.spawn(TinkerTrainer, base_model=base_model, store=store, settings=trainer.tinker, node=0)
    from tinker_actors.training import Trainer

    made = await mesh.spawn(Trainer, base_model=base_model, store=store, threads=trainer.threads, device=device, node=0)
    return cast(TrainsPolicies, made)


def check_place(trainer: OptimizerSection, model: ModelSection) -> None:
    """Ask the service that is to train, if one is, whether it can.

    Raises:
        ConfigError: It can't be reached, refuses the key, or hasn't the base model.
    """
    if trainer.backend != "tinker":
        return
    from tinker_actors.services.reaching import check_service

    check_service(trainer.tinker, model.name)


def check_policy(where: str, policy: PolicySection, trainer: OptimizerSection) -> None:
    """Refuse a policy that the service which is to train can't be asked to.

    Args:
        where: Begins the errors; empty, or the policy's table.
        policy: What it is made of.
        trainer: What it is trained with.

    Raises:
        ValueError: Names the key, the value and what would be right.
    """
    if trainer.backend != "tinker":
        return
    if trainer.optimizer != "adamw":
        raise ValueError(
            f"{where}trainer.optimizer is {trainer.optimizer!r}, but trainer.backend 'tinker' has 'adamw' alone"
        )
    if policy.start_store is not None:
        raise ValueError(
            f"{where}policy.start_store is {policy.start_store!r}, but trainer.backend is 'tinker', and a service "
            "can't be given weights from here; leave it out, or trainer.backend 'local'"
        )
    try:
        new_model(
            PolicySpec(
                base_model="any",
                kind=policy.kind,
                rank=policy.rank,
                alpha=policy.alpha,
                target_modules=policy.target_modules,
                targets=policy.targets,
                value_head=policy.value_head,
            ),
            "any",
        )
    except ConfigError as error:
        raise ValueError(f"{where}policy.{error}; or trainer.backend 'local'") from error


def check_run(config: RunConfig, learners: Mapping[str, LearnerSettings]) -> None:
    """Refuse a run that can't train at a service.

    Raises:
        ValueError: Names the key, the value and what would be right.
    """
    if config.trainer.backend != "tinker":
        return
    for name, settings in learners.items():
        check_policy(f"policies.{name}: " if config.policies else "", settings.policy, settings.trainer)
    if config.sampler.backend != "tinker":
        raise ValueError(
            f"trainer.backend is 'tinker' and sampler.backend is {config.sampler.backend!r}, which can't have weights "
            "that are trained at a service; sampler.backend 'tinker' is needed"
        )
    _check_temperature("rollouts", config.rollouts.temperature)
    for table, seats in (("seats", config.seats), ("evaluation.seats", config.evaluation.seats)):
        for seat, section in seats.items():
            _check_seat(f"{table}.{seat}", section, learns=table == "seats")


def check_extensions(config: RunConfig) -> None:
    """Refuse an entropy bonus that the service has no field for; log-probs alone don't tell it.

    Raises:
        ConfigError: Names the key, the value and what would be right.
    """
    place, own = config.trainer, config.algorithm
    if place.backend != "tinker" or not own.entropy_coefficient:
        return
    if not place.tinker.extended:
        raise ConfigError(
            f"algorithm.entropy_coefficient is {own.entropy_coefficient}, but the Tinker API has no entropy bonus; 0 "
            "is needed, or trainer.tinker.takes_masks true for a service that takes it, as tinker-actors serve does"
        )
    if config.aggregation == "sequence_mean":
        raise ConfigError(
            f"algorithm.entropy_coefficient is {own.entropy_coefficient} and algorithm.aggregation 'sequence_mean'; "
            "trainer.backend 'tinker' takes an entropy bonus with one factor for all trajectories alone: 'token_mean', "
            "'token_sum' or 'constant' is needed"
        )


def check_reference(config: RunConfig) -> None:
    """Refuse a reference that lies where the trainer can't read it.

    Raises:
        ConfigError: It isn't there, or was trained elsewhere.
    """
    if not config.kl.coefficient or config.kl.reference_store is None:
        return
    store = SnapshotStore(config.kl.reference_store)
    try:
        path = path_at_service(store, store.get(config.kl.reference))
    except TinkerActorsError as error:
        raise ConfigError(f"kl.reference can't be used: {error}") from error
    if (path is None) == (config.trainer.backend == "tinker"):
        lies = "was trained here" if path is None else "lies at a Tinker service"
        raise ConfigError(
            f"kl.reference is {config.kl.reference!r}, which {lies}, and trainer.backend is "
            f"{config.trainer.backend!r}; one that was trained where the run trains is needed"
        )


def _check_seat(where: str, section: SeatSection, *, learns: bool) -> None:
    if section.store is not None:
        raise ValueError(
            f"{where}.store is {section.store!r}, but trainer.backend is 'tinker', and a service can't be given "
            "weights from here; snapshot 'initial' or a league is needed, or a script"
        )
    if learns and section.player in ("policy", "endpoint") and section.temperature is not None:
        _check_temperature(where, section.temperature)


def _check_temperature(where: str, temperature: float) -> None:
    if temperature != 1:
        raise ValueError(
            f"{where}.temperature is {temperature}, but trainer.backend is 'tinker', and a service trains on log-probs "
            "at temperature 1: 1 is needed"
        )
