# ruff: noqa: N803, N806, N815 (tensor names bear shape suffixes)
"""Datums to padded micro-batches, and the positions whose log-probs are wanted.

A datum with candidates (`topk_targets`) has a target for each of them, one position's after the other's; any other
has one per position.

Shape suffixes: B rows, L positions of the longest row, N scored targets, T targets of a whole batch, one datum after
the other in the caller's order.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tinker_actors.data import Datum, ModelInput
from tinker_actors.errors import DataError, ModelError
from tinker_actors.models.vision import Vision
from tinker_actors.training.contract import LossConfig
from tinker_actors.training.losses import LossInputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One datum, ready to be laid out.

    Attributes:
        start: Where its targets start among those of the whole batch.
        tokens: The model's input, shape (n,).
        scored: Indices of the targets whose log-probs are wanted, ascending.
        positions: The position that predicts each of those, ascending, as long as `scored`.
        targets: The target ids at those, as long as `scored`.
        temperature: Divides the logits.
        pictured: The model's input with its images, if it has any.
    """

    start: int
    tokens: tuple[int, ...]
    scored: tuple[int, ...]
    positions: tuple[int, ...]
    targets: tuple[int, ...]
    temperature: float
    pictured: ModelInput | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """One pass through the model.

    Attributes:
        tokens_BL: Input ids; what stands beyond a row's length has no meaning and reaches no result.
        positions_BL: Position ids.
        attention: (B, L) with 1 below each row's length; or (B, 1, L, L), True where a position (third axis) sees
            another (last axis); None where nothing is padded and every position sees those before it.
        rows_N: The row of each scored target.
        columns_N: The position in that row whose output predicts it.
        targets_N: The scored target ids.
        temperatures_N: Divisors of the logits.
        slots_N: The place of each scored target among those of the whole batch.
        pictured: What each row reads, if images are among it; their positions then replace `positions_BL`.
    """

    tokens_BL: Tensor
    positions_BL: Tensor
    attention: Tensor | None
    rows_N: Tensor
    columns_N: Tensor
    targets_N: Tensor
    temperatures_N: Tensor
    slots_N: Tensor
    pictured: tuple[ModelInput, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """The rows of a whole batch of datums, one after the other; fp64 but for `trained_T`.

    Attributes:
        trained_T: Whether the target enters the loss.
        weights_T: Supervised weights; 0 for RL data.
        old_logprobs_T: Log-probs as sampled; 0 for supervised data.
        advantages_T: Advantages; 0 for supervised data.
        reference_logprobs_T: Log-probs under the reference; 0 without one.
        returns_T: What a value head is trained towards; 0 without one.
        old_values_T: What it said when advantages were made; 0 without one.
        scales_T: The scale of the target's datum.
        sequences_T: Index of the target's datum in the batch; integers.
    """

    trained_T: Tensor
    weights_T: Tensor
    old_logprobs_T: Tensor
    advantages_T: Tensor
    reference_logprobs_T: Tensor
    returns_T: Tensor
    old_values_T: Tensor
    scales_T: Tensor
    sequences_T: Tensor

    @classmethod
    def of(cls, datums: Sequence[Datum]) -> Targets:
        """The rows of these datums."""

        def rows(name: str) -> Tensor:
            found = [getattr(datum, name) or (0.0,) * datum.scores for datum in datums]
            return torch.tensor([value for row in found for value in row], dtype=torch.float64)

        counts = torch.tensor([datum.scores for datum in datums])
        weights = [value for datum in datums for value in _weights(datum)]
        weights_T = torch.tensor(weights, dtype=torch.float64)
        return cls(
            trained_T=(weights_T != 0) | (rows("mask") != 0),
            weights_T=weights_T,
            old_logprobs_T=rows("logprobs"),
            advantages_T=rows("advantages"),
            reference_logprobs_T=rows("reference_logprobs"),
            returns_T=rows("returns"),
            old_values_T=rows("values"),
            scales_T=torch.tensor([datum.scale for datum in datums], dtype=torch.float64).repeat_interleave(counts),
            sequences_T=torch.arange(len(datums)).repeat_interleave(counts),
        )

    def beside(
        self, logprobs_N: Tensor, entropy_N: Tensor, slots_N: Tensor, values_N: Tensor | None = None
    ) -> LossInputs:
        """What a loss sees for log-probs, entropies and values at these slots."""

        def at(row_T: Tensor) -> Tensor:
            return row_T[slots_N].to(logprobs_N)

        return LossInputs(
            logprobs_N=logprobs_N,
            entropy_N=entropy_N.to(logprobs_N),
            weights_N=at(self.weights_T),
            old_logprobs_N=at(self.old_logprobs_T),
            advantages_N=at(self.advantages_T),
            reference_logprobs_N=at(self.reference_logprobs_T),
            scales_N=at(self.scales_T),
            sequences_N=self.sequences_T[slots_N].to(logprobs_N.device),
            values_N=values_N,
            returns_N=None if values_N is None else at(self.returns_T),
            old_values_N=None if values_N is None else at(self.old_values_T),
        )


def trained_targets(datum: Datum) -> tuple[int, ...]:
    """Indices of the targets that enter the loss: mask 1 (RL), or a weight that isn't 0 (supervised)."""
    marks = datum.mask if datum.is_rl else _weights(datum)
    return tuple(index for index, mark in enumerate(marks or ()) if mark != 0)


def _weights(datum: Datum) -> Sequence[float]:
    """The weight of each target, candidates included; 0 for RL data."""
    if datum.topk_weights is not None:
        return [weight for row in datum.topk_weights for weight in row]
    return datum.weights or (0.0,) * len(datum)


def _aims(datum: Datum) -> tuple[Sequence[int], Sequence[int]]:
    """The position that predicts each target and the target ids, candidates included."""
    if datum.topk_targets is None:
        return range(len(datum)), datum.targets
    pairs = [(position, token) for position, row in enumerate(datum.topk_targets) for token in row]
    return [position for position, _ in pairs], [token for _, token in pairs]


def check_batch(
    datums: Sequence[Datum], loss: LossConfig, *, vocabulary: int, context_length: int, vision: Vision | None = None
) -> None:
    """Refuse a batch that can't be trained on, before anything is computed.

    Raises:
        DataError: The batch is empty, or names the datum that is of the wrong kind for the loss, has an image that the
            model can't read, is longer than the context, or has a token outside the vocabulary.
    """
    if not datums:
        raise DataError("the batch has no datums; at least one is needed")
    for index, datum in enumerate(datums):
        where = f"datum {index} ({datum.where})"
        if datum.is_rl == loss.is_supervised:
            have, need = ("mask and advantages", "weights") if datum.is_rl else ("weights", "mask and advantages")
            raise DataError(f"{where} has {have}, but the loss {loss.name} needs {need}")
        if vision is not None:
            _check_vision(where, datum, vision)
        elif not datum.model_input.is_text:
            raise DataError(f"{where} has an image; the base model reads none")
        if len(datum) > context_length:
            raise DataError(f"{where} has {len(datum)} positions; the model's context has {context_length}")
        if loss.kl_coefficient and datum.reference_logprobs is None:
            raise DataError(f"{where} has no reference_logprobs, but kl_coefficient is {loss.kl_coefficient}")
        if loss.value_coefficient and (datum.returns is None or (loss.value_clip is not None and datum.values is None)):
            missing = "returns" if datum.returns is None else "values"
            raise DataError(f"{where} has no {missing}, but value_coefficient is {loss.value_coefficient}")
        tokens = {*datum.model_input.tokens, *datum.targets, *_aims(datum)[1]}
        for token in (min(tokens), max(tokens)):
            if not 0 <= token < vocabulary:
                raise DataError(f"{where} has token {token}; the model's vocabulary has the ids below {vocabulary}")


def _check_vision(where: str, datum: Datum, vision: Vision) -> None:
    try:
        vision.check(datum.model_input)
    except ModelError as error:
        raise DataError(f"{where}: {error}") from error
    positions, targets = _aims(datum)
    for index in trained_targets(datum):
        if targets[index] in vision.rule.unsampled:
            raise DataError(
                f"{where} trains token {targets[index]} as target {positions[index]}, which belongs to images; no "
                "policy of this model ever samples it"
            )


def examples_of(
    datums: Sequence[Datum], *, every_target: bool = False, unsampled: Collection[int] = ()
) -> list[Example]:
    """What has to be computed: the datums with at least one scored target, in their order.

    A row is cut after the last position that predicts a scored target: what follows can't matter.

    Args:
        datums: The batch.
        every_target: Score all targets, but for `unsampled` ones, rather than the trained ones.
        unsampled: Tokens that have no log-prob, because no policy of the model ever samples them.
    """
    examples: list[Example] = []
    start = 0
    for datum in datums:
        scored = trained_targets(datum)
        if every_target:
            scored = tuple(index for index, target in enumerate(_aims(datum)[1]) if target not in unsampled)
        if scored:
            positions, targets = _aims(datum)
            examples.append(
                Example(
                    start=start,
                    tokens=datum.model_input.tokens[: positions[scored[-1]] + 1],
                    scored=scored,
                    positions=tuple(positions[index] for index in scored),
                    targets=tuple(targets[index] for index in scored),
                    temperature=datum.temperature,
                    pictured=None if datum.model_input.is_text else datum.model_input.first(positions[scored[-1]] + 1),
                )
            )
        start += datum.scores
    return examples


def split(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices of rows in micro-batches of at most `budget` positions when padded, like lengths together.

    A row longer than the budget makes a batch of its own.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        # The first row of a batch is its longest, so it sets the padded width.
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= budget:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def padded(examples: Sequence[Example]) -> MicroBatch:
    """One row per example, padded on the right; attention comes from the lengths, never from an id."""
    lengths = [len(example.tokens) for example in examples]
    width = max(lengths)
    tokens_BL = torch.zeros(len(examples), width, dtype=torch.long)
    for row, example in enumerate(examples):
        tokens_BL[row, : lengths[row]] = torch.tensor(example.tokens)
    attention = None
    if min(lengths) < width:
        attention = (torch.arange(width) < torch.tensor(lengths)[:, None]).long()
    counts = torch.tensor([len(example.scored) for example in examples])
    return MicroBatch(
        tokens_BL=tokens_BL,
        positions_BL=torch.arange(width).expand(len(examples), width),
        attention=attention,
        rows_N=torch.arange(len(examples)).repeat_interleave(counts),
        columns_N=torch.tensor([position for example in examples for position in example.positions]),
        targets_N=torch.tensor([target for example in examples for target in example.targets]),
        temperatures_N=torch.tensor([example.temperature for example in examples]).repeat_interleave(counts),
        slots_N=torch.tensor([example.start + index for example in examples for index in example.scored]),
        pictured=tuple(example.pictured or ModelInput.of(example.tokens) for example in examples)
        if any(example.pictured for example in examples)
        else (),
    )


def plain_batches(examples: Sequence[Example], budget: int) -> list[MicroBatch]:
    """All examples in padded micro-batches."""
    batches = split([len(example.tokens) for example in examples], budget)
    return [padded([examples[index] for index in batch]) for batch in batches]
