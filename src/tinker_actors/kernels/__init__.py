"""The multi-LoRA residual: one matrix of token rows, each row with its own adapter or none.

A plan is built once per step and reused by every layer and projection. Names resolve on first use: a plan needs
numpy alone, the residual needs torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinker_actors.lazy import lazy_names

if TYPE_CHECKING:
    from tinker_actors.kernels.dispatch import Path
    from tinker_actors.kernels.plan import NO_ADAPTER, KernelError, RowPlan, Segment
    from tinker_actors.kernels.residual import Projection, add_lora_residual, lora_residual, lora_residuals

_HOMES = {
    "NO_ADAPTER": "plan",
    "KernelError": "plan",
    "Path": "dispatch",
    "Projection": "residual",
    "RowPlan": "plan",
    "Segment": "plan",
    "add_lora_residual": "residual",
    "lora_residual": "residual",
    "lora_residuals": "residual",
}

__all__ = [
    "NO_ADAPTER",
    "KernelError",
    "Path",
    "Projection",
    "RowPlan",
    "Segment",
    "add_lora_residual",
    "lora_residual",
    "lora_residuals",
]

__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
