"""New policies from the weights of stored ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from tinker_actors.errors import PolicyError
from tinker_actors.models import BaseModel
from tinker_actors.models.base import load_directory
from tinker_actors.models.json_files import read_json
from tinker_actors.policies import Manifest, PolicySpec
from tinker_actors.training.policy import TrainedPolicy


def read_snapshot(folder: Path, manifest: Manifest, policy_id: str, base: BaseModel) -> TrainedPolicy:
    """A policy that starts cold from a snapshot's weights.

    Args:
        folder: The snapshot's verified files.
        manifest: Its manifest.
        policy_id: The new policy's id.
        base: The base model of its spec.

    Raises:
        PolicyError: The weights don't fit the base model or the spec.
    """
    spec = replace(spec_of(folder, manifest), name=policy_id, base_model=manifest.base_model)
    policy = TrainedPolicy(policy_id, spec, base)
    stored = _adapter(folder, policy) if spec.kind == "lora" else _whole(folder)
    if policy.value_head is not None:  # samplers need none, so a snapshot has none: it begins anew
        stored |= policy.value_head.named()
    for name, parameter in policy.parameters.items():
        if name not in stored or stored[name].shape != parameter.shape:
            raise PolicyError(f"{manifest.handle} has no weights of shape {tuple(parameter.shape)} for {name}")
    policy.set_weights(stored)
    return policy


def spec_of(folder: Path, manifest: Manifest) -> PolicySpec:
    """What a snapshot's policy was made from: as its manifest says, or else as its adapter's configuration does."""
    if manifest.spec is not None:
        return PolicySpec.from_plain(manifest.spec)
    if manifest.kind == "full":
        return PolicySpec(base_model=manifest.base_model, kind="full")
    config: dict[str, Any] = read_json(folder / "adapter_config.json")
    targets = config["target_modules"]
    return PolicySpec(
        base_model=manifest.base_model,
        rank=config["r"],
        alpha=config["lora_alpha"],
        target_modules="all-linear" if targets == "all-linear" else tuple(sorted(targets)),
    )


def _adapter(folder: Path, policy: TrainedPolicy) -> dict[str, Tensor]:
    stored = load_file(folder / "adapter_model.safetensors")
    # PEFT leaves the adapter's own name out of what it writes
    keys = {name: f"base_model.model.{name.replace('.default', '', 1)}" for name in policy.parameters}
    return {name: stored[key] for name, key in keys.items() if key in stored}


def _whole(folder: Path) -> dict[str, Tensor]:
    return {name: value.detach() for name, value in load_directory(folder, "float32").named_parameters()}
