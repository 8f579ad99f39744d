"""One policy's optimizer: moments that belong to it alone, settings that come with every step."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tinker_actors.errors import PolicyError
from tinker_actors.training.adamw_8bit import AdamW8bit
from tinker_actors.training.optimizer_params import AdamParams, MuonParams, OptimizerName, optimizer_of

SMALLEST_8BIT = 4096
"""Numbers in the smallest tensor whose moments are worth holding in 8 bits."""


class PolicyOptimizer:
    """The optimizer of named parameters. Which one it is follows from the settings of the first step.

    Args:
        parameters: What is trained.
        matrices: Names of the parameters that Muon orthogonalises; empty where it can't be used.

    Attributes:
        name: The optimizer that the moments belong to; None before the first step.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], matrices: Collection[str] = ()) -> None:
        self._parameters = dict(parameters)
        self._matrices = frozenset(matrices)
        self._parts: list[torch.optim.Optimizer] = []
        self.name: OptimizerName | None = None

    def step(self, params: AdamParams) -> float:
        """Apply the gradients that the parameters hold, and leave them there.

        Returns:
            The gradient's global L2 norm before clipping.

        Raises:
            PolicyError: A gradient isn't finite, the moments are another optimizer's, or there is no matrix for Muon;
                weights and moments are as before.
        """
        self.prepare(optimizer_of(params))
        gradients = [parameter.grad for parameter in self._parameters.values() if parameter.grad is not None]
        total = torch.nn.utils.get_total_norm(gradients)
        norm = float(total)
        if not math.isfinite(norm):
            bad = [name for name, parameter in self._parameters.items() if _not_finite(parameter.grad)]
            raise PolicyError(
                f"the gradient has norm {norm} and is not finite in {len(bad)} of {len(self._parameters)} tensors"
                f"{', first in ' + bad[0] if bad else ''}; the step was refused and the weights are unchanged"
            )
        if params.grad_clip_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(self._parameters.values(), params.grad_clip_norm, total)
        for part in self._parts:
            part.param_groups[0].update(_settings(part, params))
            part.step()
        return norm

    def prepare(self, name: OptimizerName) -> None:
        """Be this optimizer from now on, unless there are moments of another.

        Raises:
            PolicyError: The moments are another optimizer's, or there is no matrix for Muon.
        """
        if self.name == name:
            return
        if any(part.state for part in self._parts):
            raise PolicyError(
                f"the moments are those of {self.name}, with which {name} can't go on; load a checkpoint of it with "
                "optimizer=False to start cold from its weights"
            )
        self._parts = self._build(name)
        self.name = name

    def state(self) -> dict[str, Tensor]:
        """Moments and step counts as `<moment>/<parameter>`; empty before the first step."""
        found: dict[str, Tensor] = {}
        for part in self._parts:
            for parameter_name, parameter in self._parameters.items():
                for key, value in part.state.get(parameter, {}).items():
                    found[f"{key}/{parameter_name}"] = value
        return found

    def load(self, name: OptimizerName | None, state: Mapping[str, Tensor]) -> None:
        """Take over what `name` and `state` were.

        Raises:
            PolicyError: There is no matrix for Muon.
        """
        self._parts, self.name = [], None
        if name is None:
            return
        self.prepare(name)
        owner = {id(parameter): part for part in self._parts for parameter in part.param_groups[0]["params"]}
        for entry, value in state.items():
            key, parameter_name = entry.split("/", 1)
            parameter = self._parameters[parameter_name]
            place = parameter.device if value.dim() else value.device  # torch counts steps on the CPU
            owner[id(parameter)].state[parameter][key] = value.to(place, copy=True)

    def forget(self) -> None:
        """Let go of all moments; `load` brings them back."""
        self._parts, self.name = [], None

    def _build(self, name: OptimizerName) -> list[torch.optim.Optimizer]:
        if name == "adamw":
            return [torch.optim.AdamW(self._parameters.values())]
        kind = torch.optim.Muon if name == "muon" else AdamW8bit
        chosen = {key for key, value in self._parameters.items() if value.numel() >= SMALLEST_8BIT}
        if name == "muon":
            chosen = self._matrices
            if not chosen:
                raise PolicyError(
                    "muon orthogonalises the weight matrices of hidden layers, which only a policy of kind 'full' "
                    "trains; adamw is needed here"
                )
        served = [value for key, value in self._parameters.items() if key in chosen]
        others = [value for key, value in self._parameters.items() if key not in chosen]
        parts: list[torch.optim.Optimizer] = [kind(served)] if served else []
        return [*parts, torch.optim.AdamW(others)] if others else parts


def hidden_matrices(model: nn.Module, head: nn.Module | None) -> set[str]:
    """Names of the weights of linear layers, the output head left out (Jordan et al. 2024 give it to AdamW)."""
    tied = {
        id(value) for module in model.modules() if isinstance(module, nn.Embedding) for value in module.parameters()
    }
    if head is not None:
        tied |= {id(value) for value in head.parameters()}
    return {
        f"{path}.weight"
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear) and id(module.weight) not in tied
    }


def _settings(part: torch.optim.Optimizer, params: AdamParams) -> dict[str, Any]:
    shared = {"lr": params.learning_rate, "weight_decay": params.weight_decay}
    if isinstance(part, torch.optim.Muon) and isinstance(params, MuonParams):
        return {
            **shared,
            "momentum": params.momentum,
            "ns_steps": params.newton_schulz_steps,
            "adjust_lr_fn": "match_rms_adamw",
        }
    return {**shared, "betas": (params.beta1, params.beta2), "eps": params.eps}


def _not_finite(gradient: Tensor | None) -> bool:
    return gradient is not None and not bool(torch.isfinite(gradient).all())
