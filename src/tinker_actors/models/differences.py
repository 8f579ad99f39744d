"""How far two sets of stored weights are apart, module by module, without loading a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from tinker_actors.errors import ModelError
from tinker_actors.models.adapters import scale_of
from tinker_actors.models.json_files import read_json

_ADAPTER = "adapter_model.safetensors"


def change_norms(first: Path, second: Path) -> dict[str, tuple[float, float]]:
    """For each module the Frobenius norms of its weights' change from the first to the second, and of the second.

    Of adapters it is the change that they make to the base, scale and all: the norm of B2 A2 s2 - B1 A1 s1. Modules
    that only one of them adapts count as 0 in the other.

    Args:
        first: A PEFT directory, or a transformers one.
        second: Another of the same kind.

    Raises:
        ModelError: One is an adapter and the other isn't.
    """
    adapters = [(folder / _ADAPTER).is_file() for folder in (first, second)]
    if adapters[0] != adapters[1]:
        raise ModelError(f"{first} and {second} are an adapter and full weights, which can't be compared")
    if adapters[0]:
        before, after = _adapter(first), _adapter(second)
        empty = (torch.zeros(0, 0), torch.zeros(0, 0))
        pairs = {name: (before.get(name, empty), after.get(name, empty)) for name in sorted({*before, *after})}
        return {
            name: (_product_norm([(one, -1.0), (two, 1.0)]), _product_norm([(two, 1.0)]))
            for name, (one, two) in pairs.items()
        }
    before, after = _tensors(first), _tensors(second)
    found: dict[str, tuple[float, float]] = {}
    for name in sorted({*before, *after}):
        two = after.get(name, torch.zeros(1)).double()
        one = before.get(name, torch.zeros(1)).double()
        found[name.removesuffix(".weight")] = (float((two - one).norm()), float(two.norm()))
    return found


def _product_norm(terms: list[tuple[tuple[Tensor, Tensor], float]]) -> float:
    """The norm of a sum of products B A, from the small Gram matrices of their factors."""
    used = [(b * sign, a) for (b, a), sign in terms if b.numel()]
    if not used:
        return 0.0
    b, a = torch.cat([b for b, _ in used], 1), torch.cat([a for _, a in used], 0)
    return float(((b.T @ b) * (a @ a.T)).sum().clamp_min(0).sqrt())


def _adapter(folder: Path) -> dict[str, tuple[Tensor, Tensor]]:
    """By module the factors (B s, A) in float64."""
    config: Mapping[str, Any] = read_json(folder / "adapter_config.json")
    stored = load_file(folder / _ADAPTER)
    found: dict[str, tuple[Tensor, Tensor]] = {}
    for key, a in stored.items():
        name, marker, _ = key.removeprefix("base_model.model.").partition(".lora_A")
        if marker:
            b = stored[key.replace(".lora_A", ".lora_B")].double()
            found[name] = (b * scale_of(config, name, a.shape[0]), a.double())
    return found


def _tensors(folder: Path) -> dict[str, Tensor]:
    return {name: value for path in sorted(folder.glob("*.safetensors")) for name, value in load_file(path).items()}
