"""What the linear layers of a decoder are for: attention, feed-forward or the output head."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from torch import nn

from tinker_actors.errors import ConfigError, ModelError
from tinker_actors.models.vision import TOWER

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Names of the blocks that hold the layers, in the decoder families of transformers.
_BLOCKS = {
    "attention": re.compile(r"(self_|cross_)?attn|attention|self_attention|linear_attn"),
    "mlp": re.compile(r"mlp|feed_forward|ffn|block_sparse_moe|moe|shared_expert"),
}


def layers_of_role(model: PreTrainedModel, role: str) -> list[str]:
    """Paths of a model's linear layers that have a role; a vision tower's have none.

    Args:
        model: The model.
        role: `attention`, `mlp` or `unembed`, which is the output head.

    Raises:
        ModelError: It has none.
    """
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    head = model.get_output_embeddings()
    if role == "unembed":
        found = [name for name, module in model.named_modules() if module is head and isinstance(module, nn.Linear)]
    else:
        pattern = _BLOCKS[role]
        found = [
            name
            for name in linear
            if not name.startswith(f"{TOWER}.") and any(pattern.fullmatch(part) for part in name.split(".")[:-1])
        ]
    if not found:
        raise ModelError(f"{type(model).__name__} has no linear layer for the role {role!r}; it has {_kinds(linear)}")
    return found


def short_names(model: PreTrainedModel, paths: Sequence[str]) -> list[str]:
    """Names that PEFT takes for exactly these layers: last parts of their paths, or whole ones where those mislead."""
    wanted = set(paths)
    others = {name for name, module in model.named_modules() if isinstance(module, nn.Linear | nn.Embedding)} - wanted
    misleading = {name.rpartition(".")[2] for name in others if not name.startswith(f"{TOWER}.")}
    names = {path if (last := path.rpartition(".")[2]) in misleading else last for path in paths}
    return sorted(names)


def target_names(
    model: PreTrainedModel, name: str, modules: Literal["all-linear"] | tuple[str, ...], roles: Sequence[str]
) -> str | tuple[str, ...]:
    """The names of the layers to adapt that PEFT takes.

    Args:
        model: The model; its weights don't matter.
        name: What errors call it.
        modules: As `PolicySpec.target_modules`.
        roles: As `PolicySpec.targets`; they go before `modules`.

    Raises:
        ConfigError: The model has no layer of a target's name or role.
    """
    if roles:
        try:
            paths = [path for role in roles for path in layers_of_role(model, role)]
        except ModelError as error:
            raise ConfigError(f"targets is {tuple(roles)!r}: {error}") from error
        return tuple(short_names(model, paths))
    if isinstance(modules, str):
        return modules
    layers = [path for path, module in model.named_modules() if isinstance(module, nn.Linear | nn.Embedding)]
    adaptable = [path for path in layers if not path.startswith(f"{TOWER}.")]
    for target in modules:
        if not any(path == target or path.endswith(f".{target}") for path in adaptable):
            raise ConfigError(f"target_modules has {target!r}; the modules of {name} are {_kinds(adaptable)}")
    return modules


def embeddings(model: PreTrainedModel, modules: Literal["all-linear"] | tuple[str, ...]) -> list[str]:
    """Those of `PolicySpec.target_modules` that are embeddings."""
    if isinstance(modules, str):
        return []
    paths = [path for path, module in model.named_modules() if isinstance(module, nn.Embedding)]
    return [target for target in modules if any(path == target or path.endswith(f".{target}") for path in paths)]


def _kinds(paths: Sequence[str]) -> list[str]:
    return sorted({path.rpartition(".")[2] for path in paths})
