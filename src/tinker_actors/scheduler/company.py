"""The policies of a run, and what they are played with: made when it begins, restored when it is taken up again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from tinker_actors.actors import ActorRef
from tinker_actors.coordinator import RunCoordinator
from tinker_actors.data import derive_seed
from tinker_actors.errors import ConfigError
from tinker_actors.policies import PolicySpec, Snapshot, SnapshotStore
from tinker_actors.sampling.backends import ServesSnapshots
from tinker_actors.scheduler.casting import Casting
from tinker_actors.scheduler.crew import Crew
from tinker_actors.scheduler.line_ups import Players, stored_snapshot
from tinker_actors.scheduler.players import SeatSection
from tinker_actors.scheduler.reference import Reference
from tinker_actors.scheduler.run_folder import RunState
from tinker_actors.scheduler.starts import begin, spec_of
from tinker_actors.scheduler.students import Student
from tinker_actors.scheduler.versions import Version
from tinker_actors.scheduler.warmup import warm_up, warm_up_base
from tinker_actors.training import TrainsPolicies


@dataclass(frozen=True, slots=True, kw_only=True)
class Company:
    """Everyone who plays in a run.

    Attributes:
        base_model: What all policies stand on.
        trainer: Holds those that learn.
        coordinator: Where they wait for each other between the phases of a step.
        sampler: Serves their snapshots, and the frozen ones.
        casting: Says who plays where.
        students: Those that learn.
        versions: What steps to come are played with, by the steps before it; the highest is the newest.
        frozen: Handles of the snapshots that play frozen seats, by `SeatSection.frozen_name`.
    """

    base_model: str
    trainer: TrainsPolicies
    coordinator: RunCoordinator
    sampler: ServesSnapshots
    casting: Casting
    students: tuple[Student, ...]
    versions: Mapping[int, Version]
    frozen: Mapping[str, str]

    @classmethod
    async def begin(cls, crew: Crew, players: Players) -> Company:
        """Make the policies: created, warmed up, published."""
        config, warmup = crew.config, crew.config.warmup
        crew.folder.discard_unfinished_start()
        base = await warm_up_base(crew) if warmup.method == "full" else config.model.name
        trainer = await crew.spawn_trainer(base)
        sampler = await crew.spawn_sampler(base)
        policies = list(config.learners())
        for policy, spec in _specs(crew, base).items():
            await begin(trainer, config.learners()[policy].policy, spec)
        if warmup.method == "lora":
            await warm_up(crew, trainer, {policy: _seats(crew, players, policy) for policy in policies})
            for policy in policies:
                # the moments of the warm-up's gradients say nothing of the RL gradients
                warm = await trainer.save(policy, "warm-up")
                await trainer.delete(policy)
                await trainer.load(warm, optimizer=False)
        references = await Reference.begin(trainer, config.kl, policies, base)
        snapshots = {policy: await trainer.publish(policy) for policy in policies}
        frozen = await _freeze(crew, trainer, players, {name: found.handle for name, found in snapshots.items()})
        casting = Casting(config, players, sampler, frozen)
        version = casting.begun({name: found.handle for name, found in snapshots.items()})
        await crew.announce(list(snapshots.values()), sampler, served=(*frozen.values(), *version.handles))
        return cls(
            base_model=base,
            trainer=trainer,
            coordinator=await _coordinator(crew, trainer, policies),
            sampler=sampler,
            casting=casting,
            students=_students(crew, trainer, snapshots, references, {}),
            versions={0: version},
            frozen=frozen,
        )

    @classmethod
    async def resume(cls, crew: Crew, players: Players, state: RunState) -> Company:
        """Restore the policies as they were in a saved state.

        Raises:
            ConfigError: The state has no policy or snapshot that the configuration names.
        """
        config, store = crew.config, SnapshotStore(crew.folder.policies)
        policies = list(config.learners())
        if set(policies) != set(state.policies):
            raise ConfigError(
                f"the run's policies are {', '.join(state.policies)}, and the configuration's {', '.join(policies)}; a "
                "run goes on with those that it began with"
            )
        trainer = await crew.spawn_trainer(state.base_model)
        sampler = await crew.spawn_sampler(state.base_model)
        for policy, own in state.policies.items():
            kept = store.get(own.checkpoint)
            for checkpoint in store.list(policy, "weights"):
                if checkpoint.number > kept.number:
                    store.delete(checkpoint.handle)
        for own in state.policies.values():
            await trainer.load(own.checkpoint)
        references = await Reference.resume(trainer, config.kl, policies)
        for policy in dict.fromkeys((*policies, *(store.get(handle).policy_id for handle in state.frozen.values()))):
            for snapshot in store.list(policy):
                await crew.registry.announce(snapshot)
        snapshots = {policy: await trainer.publish(policy) for policy in policies}
        frozen = await _freeze(crew, trainer, players, state.frozen)
        newest = state.versions[-1]
        version = newest.renamed({newest.snapshots[policy]: snapshots[policy].handle for policy in policies})
        versions = (*state.versions[:-1], version)
        played = [handle for each in versions for handle in each.handles]
        await crew.announce(list(snapshots.values()), sampler, served=(*frozen.values(), *played), saved=state.handles)
        baselines = {policy: own.baselines for policy, own in state.policies.items()}
        first = state.step - len(state.versions) + 1
        return cls(
            base_model=state.base_model,
            trainer=trainer,
            coordinator=await _coordinator(crew, trainer, policies),
            sampler=sampler,
            casting=Casting(config, players, sampler, frozen),
            students=_students(crew, trainer, snapshots, references, baselines),
            versions={first + place: each for place, each in enumerate(versions)},
            frozen=frozen,
        )


async def _coordinator(crew: Crew, trainer: TrainsPolicies, policies: Sequence[str]) -> RunCoordinator:
    """The global barrier over all policies; it breaks if their trainer ends."""
    return await crew.mesh.spawn(
        RunCoordinator, dict.fromkeys(policies, cast("ActorRef", trainer)), name="coordinator", node=0
    )


def _specs(crew: Crew, base_model: str) -> dict[str, PolicySpec]:
    """What the policies are made from, by their ids; every one of several has a seed of its own."""
    config = crew.config
    return {
        name: spec_of(
            settings.policy,
            base_model,
            seed=derive_seed(config.seed, "policy", name) if config.policies else config.seed,
            name=name,
        )
        for name, settings in config.learners().items()
    }


def _seats(crew: Crew, players: Players, policy: str) -> list[str]:
    """The seats that a policy may play in training."""
    seats = list(players.training)
    if crew.config.rollouts.rotate_seats:
        return seats
    return [seat for seat in seats if (entry := players.training[seat]).learns and entry.policy == policy]


def _students(
    crew: Crew,
    trainer: TrainsPolicies,
    snapshots: Mapping[str, Snapshot],
    references: Mapping[str, Reference],
    baselines: Mapping[str, Mapping[str, float]],
) -> tuple[Student, ...]:
    config, turns = crew.config, crew.environment.environment.max_turns
    return tuple(
        Student(
            settings,
            config,
            trainer,
            snapshots[policy],
            references.get(policy),
            constant=config.algorithm.aggregation_constant or turns * config.rollouts.max_tokens,
            baselines=baselines.get(policy, {}),
        )
        for policy, settings in config.learners().items()
    )


async def _freeze(crew: Crew, trainer: TrainsPolicies, players: Players, known: Mapping[str, str]) -> dict[str, str]:
    """The snapshots of frozen seats, by what their tables call them; those of other stores are brought into the run's.

    Args:
        crew: The run's actors.
        trainer: The run's trainer.
        players: Who plays.
        known: Those that are there, by the same names; when a run begins, the initial ones by their policies' ids.

    Raises:
        ConfigError: The run kept no initial snapshot of the policy.
    """
    frozen: dict[str, str] = {}
    for section in (*players.training.values(), *players.evaluation.values()):
        if section.player != "snapshot" or (name := section.frozen_name) in frozen:
            continue
        if name in known:
            frozen[name] = known[name]
        elif section.store is not None:
            frozen[name] = await _brought(crew, trainer, section, number=len(frozen) + 1)
        elif (handle := known.get(section.policy or "")) is not None:
            frozen[name] = handle
        else:
            raise ConfigError(f"this run didn't keep {name}, because nobody played with it when it began")
    return frozen


async def _brought(crew: Crew, trainer: TrainsPolicies, section: SeatSection, *, number: int) -> str:
    """A snapshot of another store, as one of the run's own."""
    found = stored_snapshot(section)
    policy = await trainer.fork(found.handle, policy=f"frozen.{number}", store=section.store)
    snapshot = await trainer.publish(policy)
    await trainer.delete(policy)
    await crew.registry.announce(snapshot)
    return snapshot.handle
