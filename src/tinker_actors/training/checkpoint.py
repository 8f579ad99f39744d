"""A policy's whole training state as files.

state.json                     spec, step, pending calls, lineage, the optimizer's name
weights.safetensors            the trained parameters by name
training_state.safetensors     optimizer/<moment>/<name>, gradients/<name>, random
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tinker_actors.errors import PolicyError
from tinker_actors.models import BaseModel
from tinker_actors.policies import PolicySpec
from tinker_actors.training.policy import TrainedPolicy

STATE, WEIGHTS, TENSORS = "state.json", "weights.safetensors", "training_state.safetensors"


def write_checkpoint(policy: TrainedPolicy, folder: Path) -> None:
    """Write everything that the policy's further training depends on."""
    state = {
        "spec": asdict(policy.spec),
        "step": policy.step,
        "pending": policy.pending,
        "snapshot": policy.snapshot,
        "optimizer": policy.optimizer.name,
    }
    (folder / STATE).write_text(json.dumps(state, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    save_file(_storable(policy.weights()), folder / WEIGHTS)
    tensors = {f"optimizer/{name}": value for name, value in policy.optimizer.state().items()}
    tensors |= {f"gradients/{name}": value for name, value in policy.gradients().items()}
    tensors["random"] = policy.generator.get_state()
    save_file(_storable(tensors), folder / TENSORS)


def read_spec(folder: Path) -> PolicySpec:
    """The spec of a checkpoint's policy."""
    return PolicySpec.from_plain(_state(folder)["spec"])


def read_checkpoint(
    folder: Path, policy_id: str, spec: PolicySpec, base: BaseModel, *, optimizer: bool = True
) -> TrainedPolicy:
    """A policy as it was saved.

    Args:
        folder: A verified checkpoint.
        policy_id: The policy's id from now on.
        spec: What the policy was made from.
        base: The base model of its spec.
        optimizer: Whether moments, step, pending gradients and random numbers come back too; without them the policy
            is a new one that starts from the saved weights.

    Raises:
        PolicyError: The saved weights don't fit the base model, which isn't the one that they were trained on.
    """
    state = _state(folder)
    policy = TrainedPolicy(policy_id, spec, base)
    weights = load_file(folder / WEIGHTS)
    if {name: value.shape for name, value in weights.items()} != {
        name: value.shape for name, value in policy.parameters.items()
    }:
        raise PolicyError(f"the weights in {folder} don't fit {base.name}: it is not the base they were trained on")
    policy.set_weights(weights)
    if optimizer:
        tensors = load_file(folder / TENSORS)
        policy.step, policy.pending, policy.snapshot = state["step"], state["pending"], state["snapshot"]
        policy.generator.set_state(tensors.pop("random"))
        policy.optimizer.load(state["optimizer"], _below("optimizer/", tensors))
        policy.set_gradients(_below("gradients/", tensors))
    return policy


def _state(folder: Path) -> dict[str, Any]:
    return json.loads((folder / STATE).read_text(encoding="utf-8"))


def _storable(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().to("cpu", memory_format=torch.contiguous_format) for name, value in tensors.items()}


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
