"""Reading PEFT's LoRA directories: adapter_config.json and adapter_model.safetensors, checked against a base."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from tinker_actors.errors import ModelError
from tinker_actors.models.adapter_config import read_config

_KEY = re.compile(r"base_model\.model\.(?P<path>.+)\.lora_(?P<part>[AB])\.weight")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterWeights:
    """An adapter's share of one layer.

    Attributes:
        a: [rank, in] float32.
        b: [out, rank] float32, the transpose of a contiguous tensor.
        scale: Factor of the product; alpha / rank, or alpha / sqrt(rank) for rank-stabilised LoRA.
    """

    a: Tensor
    b: Tensor
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """A LoRA adapter as read from its directory.

    Attributes:
        path: The directory.
        weights: By the path of the layer in the base model.
    """

    path: Path
    weights: Mapping[str, AdapterWeights]


def read_adapter(path: Path, layers: Mapping[str, tuple[int, int]], *, head: str | None = None) -> Adapter:
    """Read a PEFT directory for a base with these linear layers.

    Args:
        path: The directory.
        layers: (inputs, outputs) of each layer that may be adapted, by its path in the base model.
        head: The output head's path, which "all-linear" doesn't target.

    Raises:
        ModelError: A file is missing or unreadable, a field of the configuration can't be used, the adapter is of
            another kind, holds weights for a layer that the base lacks, or lacks weights for a layer that its
            configuration targets.
    """
    config = read_config(path)
    parts: dict[str, dict[str, Tensor]] = {}
    for key, tensor in _read_tensors(path).items():
        match = _KEY.fullmatch(key)
        if match is None:
            raise ModelError(f"{path} holds a weight that is not understood: {key}")
        if match["path"] not in layers:
            raise ModelError(
                f"{path} adapts {match['path']}, which the base does not have as an adaptable linear layer"
            )
        parts.setdefault(match["path"], {})[match["part"]] = tensor
    wanted = [layer for layer in layers if layer != head or config["target_modules"] != "all-linear"]
    if missing := [layer for layer in targeted(config, wanted) if layer not in parts]:
        raise ModelError(f"{path} has no weights for {missing[0]} ({len(missing)} targeted layers lack theirs)")
    weights = {layer: _layer_weights(path, layer, part, config, layers[layer]) for layer, part in parts.items()}
    if not weights:
        raise ModelError(f"{path} holds no weights")
    return Adapter(path=path, weights=weights)


def targeted(config: Mapping[str, Any], layers: Iterable[str]) -> list[str]:
    """Layers that an adapter's configuration targets, by PEFT's rules; empty where it picks layers by number."""
    if config.get("layers_to_transform") is not None:
        return []
    targets, excluded = config.get("target_modules"), config.get("exclude_modules")
    return [layer for layer in layers if _names(targets, layer) and not _names(excluded, layer)]


def scale_of(config: Mapping[str, Any], layer: str, rank: int) -> float:
    """Factor of one layer's product, from alpha, the patterns and rank stabilisation."""
    alpha = _by_pattern(config.get("alpha_pattern"), layer, config["lora_alpha"])
    return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _read_tensors(path: Path) -> dict[str, Tensor]:
    source = path / "adapter_model.safetensors"
    if not source.is_file():
        raise ModelError(f"{path} has no adapter_model.safetensors; a PEFT directory is needed")
    try:
        return load_file(source)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{source} can't be read: {error}") from error


def _layer_weights(
    path: Path, layer: str, part: Mapping[str, Tensor], config: Mapping[str, Any], shape: tuple[int, int]
) -> AdapterWeights:
    if part.keys() != {"A", "B"}:
        raise ModelError(f"{path} has only lora_{next(iter(part))} for {layer}; A and B are needed")
    a, b = part["A"].to(torch.float32), part["B"].to(torch.float32)
    rank = int(_by_pattern(config.get("rank_pattern"), layer, config["r"]))
    inputs, outputs = shape
    if a.shape != (rank, inputs) or b.shape != (outputs, rank):
        raise ModelError(
            f"{path}: A {tuple(a.shape)} and B {tuple(b.shape)} of {layer} do not fit rank {rank} and a layer of "
            f"{inputs} inputs and {outputs} outputs"
        )
    # B is laid out for the product that it is used in, X A^T B^T
    return AdapterWeights(a=a.contiguous(), b=b.t().contiguous().t(), scale=scale_of(config, layer, rank))


def _names(modules: str | list[str] | None, layer: str) -> bool:
    if not modules:
        return False
    if isinstance(modules, str):
        return modules == "all-linear" or re.fullmatch(modules, layer) is not None
    return any(layer == module or layer.endswith(f".{module}") for module in modules)


def _by_pattern(patterns: Mapping[str, Any] | None, layer: str, default: Any) -> Any:
    for pattern, value in (patterns or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", layer):
            return value
    return default
