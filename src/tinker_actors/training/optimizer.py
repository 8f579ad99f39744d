"""One policy's AdamW: moments that belong to it alone, settings that come with every step."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from tinker_actors.errors import PolicyError
from tinker_actors.training.contract import AdamParams


class Adam:
    """AdamW (Loshchilov and Hutter 2019) over named parameters, on torch's implementation."""

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter]) -> None:
        self._parameters = dict(parameters)
        self._optimizer = torch.optim.AdamW(self._parameters.values())

    def step(self, params: AdamParams) -> float:
        """Apply the gradients that the parameters hold, and leave them there.

        Returns:
            The gradient's global L2 norm before clipping.

        Raises:
            PolicyError: A gradient isn't finite; weights and moments are as before.
        """
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
        self._optimizer.param_groups[0].update(
            lr=params.learning_rate,
            betas=(params.beta1, params.beta2),
            eps=params.eps,
            weight_decay=params.weight_decay,
        )
        self._optimizer.step()
        return norm

    def state(self) -> dict[str, Tensor]:
        """Moments and step counts by parameter name; empty before the first step."""
        found: dict[str, Tensor] = {}
        for name, parameter in self._parameters.items():
            for key, value in self._optimizer.state.get(parameter, {}).items():
                found[f"{key}/{name}"] = value
        return found

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state` returned."""
        self._optimizer.state.clear()
        for entry, value in state.items():
            key, name = entry.split("/", 1)
            self._optimizer.state[self._parameters[name]][key] = value.clone()


def _not_finite(gradient: Tensor | None) -> bool:
    return gradient is not None and not bool(torch.isfinite(gradient).all())
