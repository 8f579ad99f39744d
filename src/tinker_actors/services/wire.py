"""Batches as the official Tinker client's types say them, and its answers as this package's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from tinker_actors.data import Datum
from tinker_actors.errors import ConfigError, DataError, SamplingError
from tinker_actors.sampling.backends.tinker_wire import input_of
from tinker_actors.training.contract import AdamParams, ForwardBackwardResult, LossConfig

_HOW_COMPUTED = ("micro_batch_tokens", "share_prompts", "gradient_checkpointing")
"""How a batch is split and computed, which changes no value and is the service's own affair."""

_NOT_SENT = {"temperature": 1.0, "scale": 1.0, "returns": None, "values": None, "topk_targets": None}
"""What the protocol has no field for, and the value at which that doesn't matter."""

_WRITTEN = {"clip_low": "clip_low_threshold", "clip_high": "clip_high_threshold"}
"""The protocol's names of settings, where they differ."""


def datum_of(tinker: Any, datum: Datum, *, takes_masks: bool) -> Any:
    """A datum of the official client.

    Args:
        tinker: The package.
        datum: The datum.
        takes_masks: Whether the service takes a mask.

    Raises:
        DataError: The protocol has no field for something that the datum says.
    """
    for name, off in _NOT_SENT.items():
        if (value := getattr(datum, name)) != off:
            raise DataError(f"{datum.where}: {name} is {value!r}; a Tinker service has none: {off!r} is needed")
    inputs: dict[str, Any] = {"target_tokens": np.asarray(datum.targets, dtype=np.int64)}
    for name in ("weights", "logprobs", "advantages", "reference_logprobs"):
        if (row := getattr(datum, name)) is not None:
            inputs[name] = np.asarray(row, dtype=np.float32)
    if datum.mask is not None:
        if takes_masks:
            inputs["mask"] = np.asarray(datum.mask, dtype=np.float32)
        elif (outside := np.flatnonzero(inputs["advantages"] * (1 - np.asarray(datum.mask)))).size:
            raise DataError(
                f"{datum.where}: advantages[{outside[0]}] is {inputs['advantages'][outside[0]]} outside the mask; the "
                "service takes no mask, so 0 is needed there"
            )
    return tinker.types.Datum(model_input=input_of(tinker, datum.model_input), loss_fn_inputs=inputs)


def settings_of(loss: LossConfig) -> dict[str, float | str]:
    """A loss's settings under the protocol's names; how it is computed is left out."""
    found: dict[str, float | str] = {}
    for entry in fields(loss):
        value = getattr(loss, entry.name)
        if entry.name == "name" or entry.name in _HOW_COMPUTED or value is None:
            continue
        if entry.default is not None and value == entry.default:
            continue
        found[_WRITTEN.get(entry.name, entry.name)] = value
    return found


def adam_of(tinker: Any, params: AdamParams) -> Any:
    """An optimizer step of the official client.

    Raises:
        ConfigError: It is one of another optimizer.
    """
    if type(params) is not AdamParams:
        raise ConfigError(f"the step is one of {type(params).__name__}; a Tinker service takes AdamParams")
    return tinker.types.AdamParams(
        learning_rate=params.learning_rate,
        beta1=params.beta1,
        beta2=params.beta2,
        eps=params.eps,
        weight_decay=params.weight_decay,
        grad_clip_norm=params.grad_clip_norm or 0.0,
    )


def result_of(output: Any, data: Sequence[Datum], *, takes_masks: bool) -> ForwardBackwardResult:
    """What a pass found.

    Raises:
        SamplingError: The answer doesn't fit the batch.
    """
    rows = [tuple(entry["logprobs"].data) for entry in output.loss_fn_outputs]
    if [len(row) for row in rows] != [len(datum) for datum in data]:
        raise SamplingError(f"the service answered with {len(rows)} rows of log-probs for {len(data)} datums")
    if not takes_masks:  # it scored targets that aren't trained, too
        rows = [
            row if datum.mask is None else tuple(v if bit else 0.0 for v, bit in zip(row, datum.mask, strict=True))
            for row, datum in zip(rows, data, strict=True)
        ]
    metrics = dict(output.metrics)
    return ForwardBackwardResult(loss=metrics.get("loss:sum", float("nan")), logprobs=tuple(rows), metrics=metrics)
