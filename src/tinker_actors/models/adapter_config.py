"""PEFT's adapter_config.json: read, and refused where its fields can't be used."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, cast

from tinker_actors.errors import ModelError
from tinker_actors.models.json_files import read_json

# Initial values for which PEFT leaves the base's weights as they are; for any other the adapter means another base.
_INITIAL_VALUES = (None, True, False, "gaussian", "eva", "orthogonal", "mica")

# Settings under which the weights mean something else than B A x * scale.
_UNSUPPORTED = (
    "use_dora",
    "lora_bias",
    "fan_in_fan_out",
    "modules_to_save",
    "layer_replication",
    "trainable_token_indices",
    "target_parameters",
    "alora_invocation_tokens",
    "use_qalora",
    "arrow_config",
)


def read_config(path: Path) -> dict[str, Any]:
    """The configuration of a PEFT directory that holds a LoRA adapter.

    Raises:
        ModelError: There is none, the adapter is of another kind or uses what can't be served, or a field's value is
            none that PEFT would write.
    """
    config = read_json(path / "adapter_config.json")
    if not config:
        raise ModelError(f"{path} has no adapter_config.json; a PEFT directory is needed")
    if config.get("peft_type") != "LORA":
        raise ModelError(f"{path} is an adapter of type {config.get('peft_type')!r}; LORA is needed")
    if absent := [key for key in ("r", "lora_alpha", "target_modules") if config.get(key) is None]:
        raise ModelError(f"adapter_config.json of {path} lacks {', '.join(absent)}")
    unsupported = [key for key in _UNSUPPORTED if config.get(key)]
    if config.get("bias", "none") != "none":
        unsupported.append("bias")
    if unsupported:
        raise ModelError(f"the adapter {path} uses {', '.join(unsupported)}, which can't be served")
    if (initial := config.get("init_lora_weights")) not in _INITIAL_VALUES:
        raise ModelError(
            f"the adapter {path} has init_lora_weights {initial!r}, which changes the base's weights too; save it in "
            "PEFT with path_initial_model_for_weight_conversion, which makes it one of the plain base"
        )
    try:
        _check(config)
    except ModelError as error:
        raise ModelError(f"adapter_config.json of {path}: {error}") from None
    return config


def _check(config: dict[str, Any]) -> None:
    _check_rank("r", config["r"])
    _check_alpha("lora_alpha", config["lora_alpha"])
    for name in ("target_modules", "exclude_modules"):
        _check_modules(name, config.get(name))
    for name, check in (("rank_pattern", _check_rank), ("alpha_pattern", _check_alpha)):
        patterns = config.get(name)
        if patterns is None:
            continue
        if not isinstance(patterns, dict):
            raise ModelError(f"{name} is {patterns!r}; an object of values by regular expressions is needed")
        for pattern, value in cast("dict[str, Any]", patterns).items():
            _check_regex(f"the key {pattern!r} of {name}", pattern)
            check(f"{name}[{pattern!r}]", value)


def _check_rank(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelError(f"{name} is {value!r}; an integer of at least 1 is needed")


def _check_alpha(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
        raise ModelError(f"{name} is {value!r}; a finite number is needed")


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond what a float holds
        return False


def _check_modules(name: str, value: object) -> None:
    if isinstance(value, str):
        _check_regex(f"{name}, which is {value!r},", value)
    elif value is not None and not (
        isinstance(value, list) and all(isinstance(entry, str) for entry in cast("list[object]", value))
    ):
        raise ModelError(f"{name} is {value!r}; a list of modules' names, or one regular expression, is needed")


def _check_regex(what: str, text: str) -> None:
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise ModelError(f"{what} is no regular expression ({error}); one in Python's syntax is needed") from None
