"""What a policy begins with: nothing learned yet, or the weights of a snapshot that an earlier run left."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from tinker_actors.errors import ConfigError, TinkerActorsError
from tinker_actors.policies import PolicySpec, Snapshot, SnapshotStore
from tinker_actors.scheduler.run_folder import RunFolder
from tinker_actors.scheduler.sections import PolicySection
from tinker_actors.training import TrainsPolicies

_COMPARED = ("kind", "rank", "alpha", "target_modules", "targets", "value_head")


def spec_of(section: PolicySection, base_model: str, *, seed: int, name: str) -> PolicySpec:
    """What a section's policy is made from.

    Args:
        section: The section.
        base_model: What it stands on.
        seed: Of its weights and random numbers.
        name: Its id.
    """
    return PolicySpec(
        base_model=base_model,
        seed=seed,
        name=name,
        **{field: getattr(section, field) for field in _COMPARED},
    )


async def begin(trainer: TrainsPolicies, section: PolicySection, spec: PolicySpec) -> None:
    """Make a policy in a trainer: a new one, or one that begins with a snapshot's weights.

    Raises:
        ConfigError: The snapshot isn't there, or doesn't fit the spec.
    """
    if section.start_store is None:
        await trainer.create(spec)
        return
    found = check_start(section, spec)
    await trainer.fork(found.handle, policy=spec.name, store=section.start_store)


def check_starts(sections: Mapping[str, PolicySection], base_model: str) -> None:
    """Find out whether the snapshots that policies are to begin with are there and fit, before anything is started.

    Args:
        sections: What the policies are made of, by what begins an error about them.
        base_model: What they stand on.

    Raises:
        ConfigError: Names the key, the value and what would be right.
    """
    for where, section in sections.items():
        if section.start_store is not None:
            try:
                check_start(section, spec_of(section, base_model, seed=0, name="any"))
            except ConfigError as error:
                raise ConfigError(f"{where}{error}") from error.__cause__


def check_start(section: PolicySection, spec: PolicySpec) -> Snapshot:
    """The snapshot that a policy begins with.

    Raises:
        ConfigError: It isn't there, a file of it is torn or altered, or it is of another base model or another make.
    """
    from tinker_actors.training.forking import spec_of as spec_of_stored  # loads torch

    store = SnapshotStore(section.start_store or "")
    try:
        found = newest(store) if section.start in (None, "latest") else store.get(section.start)
        manifest = store.manifest(found.handle)
        stored = spec_of_stored(store.fetch(found), manifest)
    except TinkerActorsError as error:
        raise ConfigError(f"policy.start can't be used: {error}{hint_of(section.start_store)}") from error
    if manifest.base_model != spec.base_model:
        raise ConfigError(
            f"policy.start is {found.handle}, which stands on the base model {manifest.base_model!r}, and model.name "
            f"is {spec.base_model!r}; {manifest.base_model!r} is needed"
        )
    compared = _COMPARED if spec.kind == stored.kind == "lora" else ("kind", "value_head")
    other = [name for name in compared if _plain(spec, name) != _plain(stored, name)]
    if other:
        raise ConfigError(
            f"policy.{_listed(spec, other)}, but {found.handle}, which it is to start from, has "
            f"{_listed(stored, other)}; those are needed"
        )
    return found


def newest(store: SnapshotStore) -> Snapshot:
    """The newest snapshot of the only policy that a store has any of.

    Raises:
        ConfigError: It has snapshots of none, or of several.
    """
    policies = [policy for policy in store.policies() if store.list(policy)]
    if len(policies) != 1:
        raise ConfigError(
            f"the store {store.root} has snapshots of {', '.join(policies) or 'none'}; name the policy, or a "
            "snapshot's handle"
        )
    return store.latest(policies[0])


def hint_of(store: str | None) -> str:
    """Where the store is, to end an error with, if the folder of a run was named in its place; else nothing."""
    if store is None or not (below := RunFolder(Path(store)).policies).is_dir():
        return ""
    return f"; the store of that run is {below}"


def _plain(spec: PolicySpec, name: str) -> object:
    """A field's value; names of modules in whatever order."""
    value: object = getattr(spec, name)
    return frozenset(cast("tuple[str, ...]", value)) if isinstance(value, tuple) else value


def _listed(spec: PolicySpec, names: list[str]) -> str:
    values: list[object] = [getattr(spec, name) for name in names]
    shown = [list(cast("tuple[str, ...]", value)) if isinstance(value, tuple) else value for value in values]
    words = [f"{name} {value!r}" for name, value in zip(names, shown, strict=True)]
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else words[0]
