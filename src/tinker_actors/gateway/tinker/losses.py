"""Which loss a client asks for, and the datums that it is over: from the Tinker API's names to the trainer's.

The wire has no mask of its own. What is trained is, in this order: where the input `mask` is 1; for `gspo` where
`sequence_ratio_mask` isn't 0; else every target that is a text token, as the API's losses are sums over all of them. It
never derives from an advantage or a log-prob.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tinker_actors.data import Datum, ImageChunk, ModelInput
from tinker_actors.errors import ConfigError, DataError
from tinker_actors.gateway.tinker.batches import Row
from tinker_actors.training.contract import LOSS_DEFAULTS, LossConfig, LossName

CLOSED = "stable_reinforce"
"""A loss whose objective isn't public."""

_SETTINGS = ("kl_coefficient", "kl_estimator", "entropy_coefficient")
"""Settings of all RL losses that a client may give beside the loss's own."""

_RL_INPUTS = ("target_tokens", "logprobs", "advantages", "mask", "reference_logprobs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A loss as a client asked for it.

    Attributes:
        asked: Its name in the request.
        config: What is computed.
        near_sampler: Whether the KL penalty is to the log-probs as sampled.
    """

    asked: str
    config: LossConfig
    near_sampler: bool = False


def loss_of(name: str, settings: Mapping[str, float | str], *, surrogate: LossName | None = None) -> Loss:
    """The loss that a request names.

    Args:
        name: Its name in the Tinker API, or another of the trainer's losses.
        settings: `loss_fn_config`.
        surrogate: What is computed for `stable_reinforce`; None to refuse it.

    Raises:
        ConfigError: There is no such loss or setting, or the loss is closed.
    """
    if name == "custom":
        raise ConfigError(
            "loss_fn is 'custom', a loss to be run by the service; give forward_backward_custom a function instead, "
            "which runs at the client"
        )
    if name == CLOSED:
        return _closed(settings, surrogate)
    if name not in LOSS_DEFAULTS:
        raise ConfigError(f"loss_fn is {name!r}; the losses are {sorted(LOSS_DEFAULTS)}")
    config = LossConfig.from_settings(cast(LossName, name), _known(name, settings))
    return Loss(asked=name, config=config)


def _closed(settings: Mapping[str, float | str], surrogate: LossName | None) -> Loss:
    if surrogate is None:
        raise ConfigError(
            f"loss_fn is {CLOSED!r}, whose objective isn't public; choose one of {sorted(LOSS_DEFAULTS)}, or have the "
            "service's operator name a surrogate for it"
        )
    left = {key: value for key, value in settings.items() if key not in ("kl_coeff", "alpha")}
    coefficient = settings.get("kl_coeff", 0.0)
    known = {**_known(surrogate, left), "kl_coefficient": coefficient}
    return Loss(asked=CLOSED, config=LossConfig.from_settings(surrogate, known), near_sampler=bool(coefficient))


def _known(name: str, settings: Mapping[str, float | str]) -> Mapping[str, float | str]:
    own = {*LOSS_DEFAULTS[name], *(f"{key}_threshold" for key in LOSS_DEFAULTS[name] if key.startswith("clip"))}
    offered = own if name == "cross_entropy" else {*own, *_SETTINGS}
    for key, value in settings.items():
        if key not in offered:
            raise ConfigError(f"loss_fn_config has {key} = {value!r}; {name} takes {sorted(offered) or 'nothing'}")
    return settings


def datums_of(rows: Sequence[Row], loss: Loss) -> list[Datum]:
    """The datums of a request.

    Raises:
        DataError: Names the datum and the input that is missing, of another shape, or not one of the loss's.
    """
    if not rows:
        raise DataError("data is empty; at least one datum is needed")
    build = _supervised if loss.config.is_supervised else _sampled
    return [build(f"datum {index}", row, loss) for index, row in enumerate(rows)]


def _supervised(where: str, row: Row, loss: Loss) -> Datum:
    _check_names(where, row, ("target_tokens", "weights"), loss)
    targets = _input(where, row, "target_tokens", dimensions=(1, 2))
    weights = row.inputs.get("weights")
    if targets.ndim == 2:
        if weights is None or weights.shape != targets.shape:
            shape = None if weights is None else list(weights.shape)
            raise DataError(
                f"{where}: weights has shape {shape}; that of target_tokens, {list(targets.shape)}, is needed"
            )
        return _candidates(where, row.model_input, targets, weights)
    if weights is None:  # no weights are weights of 1; an image's positions are no text to learn
        weights = (~image_targets(row.model_input, len(targets))).astype(np.float32)
    return Datum(
        where=where,
        model_input=row.model_input,
        targets=_integers(targets),
        weights=_floats(_row(where, "weights", weights, len(targets))),
    )


def _candidates(where: str, model_input: ModelInput, targets: NDArray[Any], weights: NDArray[Any]) -> Datum:
    """Candidates of each target, each once, with the sum of its weights."""
    rows: list[tuple[int, ...]] = []
    sums: list[tuple[float, ...]] = []
    for candidates, shares in zip(targets, weights, strict=True):
        distinct, places = np.unique(candidates, return_inverse=True)
        total = np.zeros(len(distinct))
        np.add.at(total, places, shares)
        rows.append(_integers(distinct))
        sums.append(_floats(total))
    return Datum(
        where=where,
        model_input=model_input,
        targets=_integers(targets[:, 0]) if targets.shape[1] else (0,) * len(targets),
        topk_targets=tuple(rows),
        topk_weights=tuple(sums),
    )


def _sampled(where: str, row: Row, loss: Loss) -> Datum:
    gspo = loss.config.name == "gspo"
    _check_names(where, row, (*_RL_INPUTS, "sequence_ratio_mask") if gspo else _RL_INPUTS, loss)
    targets = _input(where, row, "target_tokens")
    length = len(targets)
    logprobs = _row(where, "logprobs", _input(where, row, "logprobs"), length)
    advantages = _row(where, "advantages", _input(where, row, "advantages"), length)
    reference = row.inputs.get("reference_logprobs")
    if loss.near_sampler:
        reference = logprobs
    mask = _mask(where, row, length)
    if gspo and "mask" not in row.inputs and (outside := np.flatnonzero(advantages * (1 - mask))).size:
        raise DataError(
            f"{where}: advantages[{outside[0]}] is {advantages[outside[0]]} where sequence_ratio_mask is 0; tokens "
            "that the sequence's ratio leaves out aren't trained, so 0 is needed"
        )
    return Datum(
        where=where,
        model_input=row.model_input,
        targets=_integers(targets),
        mask=_integers(mask),
        logprobs=_floats(logprobs),
        advantages=_floats(advantages),
        reference_logprobs=None if reference is None else _floats(_row(where, "reference_logprobs", reference, length)),
        sampled_tokens=int(mask.sum()),
    )


def _mask(where: str, row: Row, length: int) -> NDArray[Any]:
    """1 where a target is trained; see the module's docstring for what says so."""
    if (given := row.inputs.get("mask")) is not None:
        mask = _row(where, "mask", given, length)
        if wrong := [index for index in range(length) if mask[index] not in (0, 1)]:
            raise DataError(f"{where}: mask[{wrong[0]}] is {mask[wrong[0]]}; 0 or 1 is needed")
        return mask.astype(np.int64)
    if (ratio := row.inputs.get("sequence_ratio_mask")) is not None:
        return (_row(where, "sequence_ratio_mask", ratio, length) != 0).astype(np.int64)
    return (~image_targets(row.model_input, length)).astype(np.int64)


def image_targets(model_input: ModelInput, length: int) -> NDArray[np.bool_]:
    """Which targets are positions of an image: the target at an index is the input's next position."""
    found = np.zeros(length, dtype=bool)
    start = 0
    for chunk in model_input.chunks:
        if isinstance(chunk, ImageChunk):
            found[max(start - 1, 0) : start + len(chunk) - 1] = True
        start += len(chunk)
    return found


def _check_names(where: str, row: Row, names: Sequence[str], loss: Loss) -> None:
    for name in sorted(row.inputs):
        if name not in names:
            raise DataError(f"{where}: loss_fn_inputs has {name!r}; {loss.asked} takes {', '.join(names)}")


def _input(where: str, row: Row, name: str, *, dimensions: Sequence[int] = (1,)) -> NDArray[Any]:
    if name not in row.inputs:
        raise DataError(f"{where}: loss_fn_inputs has no {name!r}; it has {sorted(row.inputs)}")
    found = row.inputs[name]
    if found.ndim not in dimensions:
        raise DataError(f"{where}: {name} has shape {list(found.shape)}; {dimensions} dimensions are needed")
    return found


def _row(where: str, name: str, values: NDArray[Any], length: int) -> NDArray[Any]:
    if values.shape != (length,):
        raise DataError(f"{where}: {name} has shape {list(values.shape)}; one per target, [{length}], is needed")
    return values


def _integers(values: NDArray[Any]) -> tuple[int, ...]:
    if values.dtype.kind not in "iu":
        raise DataError(f"target_tokens has dtype {values.dtype}; integers are needed")
    return tuple(values.tolist())


def _floats(values: NDArray[Any]) -> tuple[float, ...]:
    return tuple(values.astype(np.float64).tolist())
