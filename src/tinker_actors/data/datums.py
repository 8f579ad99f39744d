"""Datums: training examples in target coordinates.

For tokens z1..zn the model input is z1..z(n-1) and the targets are z2..zn. Mask, old log-probs, advantages and weights
stand in target coordinates and have the targets' length. Prompt [1, 2, 3] and action [4, 5] give

>>> from tinker_actors.data import Trajectory, EpisodeEnd, turns_from_prompts
>>> turns = turns_from_prompts([([1, 2, 3], [4, 5], [-0.4, -0.5])])
>>> trajectory = Trajectory(seat="agent", policy="p", turns=turns, end=EpisodeEnd.TERMINATED)
>>> (datum,) = rl_datums(trajectory, advantage=2.0)
>>> datum.model_input.tokens
(1, 2, 3, 4)
>>> datum.targets
(2, 3, 4, 5)
>>> datum.mask
(0, 0, 1, 1)
>>> datum.logprobs
(0.0, 0.0, -0.4, -0.5)
>>> datum.advantages
(0.0, 0.0, 2.0, 2.0)

The mask is explicit and never derives from a value: an advantage or a weight may be zero, and a pad id may be sampled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tinker_actors.data.inputs import ImageChunk, ModelInput, concatenate
from tinker_actors.data.trajectories import Trajectory, Turn
from tinker_actors.errors import DataError

T = TypeVar("T")

_OPTIONAL_RL_ROWS = ("reference_logprobs", "returns", "values")


@dataclass(frozen=True, slots=True, kw_only=True)
class Datum:
    """One training example, checked when built. n is the number of targets.

    Attributes:
        model_input: Length n.
        targets: Token ids, shape (n,).
        weights: Supervised weight per target, shape (n,); None for RL and where `topk_targets` stand in.
        topk_targets: Supervised: any number of candidates per target, as a teacher's top K; they are trained instead of
            `targets`. Shape (n, K); K may differ by target.
        topk_weights: The weight of each candidate, such as the teacher's probability, in the shape of `topk_targets`.
        mask: 1 where the target was sampled by the policy, else 0, shape (n,); None for supervised data.
        logprobs: Natural log-prob of each sampled target as sampled, 0 elsewhere, shape (n,); None if supervised.
        advantages: Advantage of each sampled target, 0 elsewhere, shape (n,); None if supervised.
        reference_logprobs: Natural log-prob of each sampled target under a reference policy at the same temperature,
            shape (n,); read where the mask is 1 only. None where no KL to a reference is wanted.
        returns: What a value head is trained towards at each sampled target, 0 elsewhere, shape (n,); None without one.
        values: What the value head said there when advantages were made of it, 0 elsewhere, shape (n,).
        sampled_tokens: How many tokens the policy sampled; the mask's sum must equal it.
        temperature: The temperature of the log-probs; the trainer divides its logits by it.
        scale: Multiplies every term of the datum's loss, penalties too: how a summed loss becomes a mean.
        where: Names the seat and turns in error messages.
    """

    model_input: ModelInput
    targets: tuple[int, ...]
    weights: tuple[float, ...] | None = None
    topk_targets: tuple[tuple[int, ...], ...] | None = None
    topk_weights: tuple[tuple[float, ...], ...] | None = None
    mask: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    advantages: tuple[float, ...] | None = None
    reference_logprobs: tuple[float, ...] | None = None
    returns: tuple[float, ...] | None = None
    values: tuple[float, ...] | None = None
    sampled_tokens: int = 0
    temperature: float = 1.0
    scale: float = 1.0
    where: str = "datum"

    def __post_init__(self) -> None:
        length = len(self.targets)
        if length == 0:
            raise DataError(f"{self.where}: targets is empty; at least two tokens make a datum")
        if len(self.model_input) != length:
            raise DataError(f"{self.where}: model_input has {len(self.model_input)} positions for {length} targets")
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise DataError(f"{self.where}: temperature is {self.temperature}; a positive number is needed")
        if not (math.isfinite(self.scale) and self.scale >= 0):
            raise DataError(f"{self.where}: scale is {self.scale}; a finite number of at least 0 is needed")
        if self.is_rl:
            self._check_rl(length)
            self._check_images("mask", self.mask or ())
            return
        kind = "topk_targets" if self.weights is None else "weights"
        for name in ("mask", "logprobs", "advantages", *_OPTIONAL_RL_ROWS):
            if getattr(self, name) is not None:
                raise DataError(f"{self.where}: {name} and {kind} exclude each other; {kind} mark supervised data")
        if self.weights is None:
            self._check_topk(length)
            return
        if self.topk_targets is not None or self.topk_weights is not None:
            raise DataError(f"{self.where}: topk_targets and weights exclude each other; candidates have topk_weights")
        _check_row(self.where, "weights", self.weights, length)
        self._check_images("weights", self.weights)

    def _check_images(self, name: str, marks: Sequence[float]) -> None:
        start = 0
        for chunk in self.model_input.chunks:
            # the target at an index is the token one position further
            for index in range(max(start - 1, 0), start + len(chunk) - 1) if isinstance(chunk, ImageChunk) else ():
                if marks[index] != 0:
                    raise DataError(
                        f"{self.where}: {name}[{index}] is {marks[index]}, but that target is a position of an image; "
                        "0 is needed"
                    )
            start += len(chunk)

    def _check_topk(self, length: int) -> None:
        if self.topk_targets is None or self.topk_weights is None:
            missing = "topk_targets" if self.topk_targets is None else "topk_weights"
            raise DataError(f"{self.where}: {missing} missing; candidates and their weights come together")
        for name, rows in (("topk_targets", self.topk_targets), ("topk_weights", self.topk_weights)):
            if len(rows) != length:
                raise DataError(f"{self.where}: {name} has {len(rows)} rows for {length} targets")
        for position, (candidates, weights) in enumerate(zip(self.topk_targets, self.topk_weights, strict=True)):
            if len(set(candidates)) != len(candidates):
                raise DataError(
                    f"{self.where}: topk_targets[{position}] is {candidates}; each candidate once is needed"
                )
            _check_row(self.where, f"topk_weights[{position}]", weights, len(candidates))
        self._check_images("topk_weights", [any(weights) for weights in self.topk_weights])

    def _check_rl(self, length: int) -> None:
        if self.mask is None or self.logprobs is None or self.advantages is None:
            present = {"mask": self.mask, "logprobs": self.logprobs, "advantages": self.advantages}
            missing = [name for name, row in present.items() if row is None]
            raise DataError(
                f"{self.where}: {', '.join(missing)} missing; an RL datum carries mask, logprobs and advantages, "
                "a supervised one carries weights or topk_targets"
            )
        _check_row(self.where, "mask", self.mask, length)
        _check_row(self.where, "logprobs", self.logprobs, length)
        _check_row(self.where, "advantages", self.advantages, length)
        for name in _OPTIONAL_RL_ROWS:
            if getattr(self, name) is not None:
                _check_row(self.where, name, getattr(self, name), length)
        for position, bit in enumerate(self.mask):
            if bit not in (0, 1):
                raise DataError(f"{self.where}: mask[{position}] is {bit}; 0 or 1 is needed")
        if sum(self.mask) != self.sampled_tokens:
            raise DataError(
                f"{self.where}: mask marks {sum(self.mask)} targets, but {self.sampled_tokens} tokens were sampled"
            )

    @property
    def is_rl(self) -> bool:
        """Whether the datum carries advantages rather than weights."""
        return self.weights is None and self.topk_targets is None and self.topk_weights is None

    @property
    def scores(self) -> int:
        """How many log-probs the datum has: one per target, or one per candidate."""
        return len(self.targets) if self.topk_targets is None else sum(map(len, self.topk_targets))

    def __len__(self) -> int:
        return len(self.targets)


def rl_datums(
    trajectory: Trajectory,
    advantage: float | Sequence[float | Sequence[float]],
    *,
    scale: float = 1.0,
    returns: Sequence[Sequence[float]] | None = None,
    values: Sequence[Sequence[float]] | None = None,
) -> tuple[Datum, ...]:
    """RL datums of a trajectory; every sampled token is trained exactly once.

    Turns whose observations continue the tokens held share a datum; one that restarts begins another.

    Args:
        trajectory: Sampled by a policy, with log-probs.
        advantage: One for all turns, or one per turn, or for a turn one per action token.
        scale: The datums' scale, for a named aggregation of the sum-reduced losses.
        returns: What a value head is trained towards: a row per turn with one per action token.
        values: What it said, in the same shape.

    Raises:
        DataError: A row doesn't have one entry per turn or action token; log-probs are missing; the sampling was
            truncated (top-p, top-k) or greedy, so that the trainer could not reproduce its distribution; or
            temperatures differ within a datum. Names seat and turn.
    """
    turns = trajectory.turns
    entries = [advantage] * len(turns) if isinstance(advantage, int | float) else list(advantage)
    per_token = _per_token(trajectory, "advantages", entries)
    returns = None if returns is None else _per_token(trajectory, "returns", returns)
    values = None if values is None else _per_token(trajectory, "values", values)
    for number, turn in enumerate(turns):
        _check_sampled(f"seat {trajectory.seat!r}, turn {number}", turn)
    datums: list[Datum] = []
    for start, span in _spans(turns):
        where, whole = _joined(trajectory.seat, start, span)
        datums.append(
            Datum(
                where=where,
                model_input=whole.without_last(),
                targets=whole.tokens[1:],
                mask=_targets_row(span, 0, lambda turn, _: [1] * len(turn.action)),
                logprobs=_targets_row(span, 0.0, lambda turn, _: turn.logprobs or ()),
                advantages=_rows_of(span, start, per_token),
                returns=None if returns is None else _rows_of(span, start, returns),
                values=None if values is None else _rows_of(span, start, values),
                sampled_tokens=sum(len(turn.action) for turn in span),
                temperature=_temperature(where, span),
                scale=scale,
            )
        )
    return tuple(datums)


def sft_datums(trajectory: Trajectory, *, weight: float = 1.0) -> tuple[Datum, ...]:
    """Supervised datums of a trajectory: `weight` on every action token, 0 on every observation token."""
    datums: list[Datum] = []
    for start, span in _spans(trajectory.turns):
        where, whole = _joined(trajectory.seat, start, span)
        weights = _targets_row(span, 0.0, lambda turn, _: [weight] * len(turn.action))
        datums.append(Datum(where=where, model_input=whole.without_last(), targets=whole.tokens[1:], weights=weights))
    return tuple(datums)


def _spans(turns: Sequence[Turn]) -> list[tuple[int, Sequence[Turn]]]:
    """Runs of turns that share a datum, each with its first turn's number; cut after the last action.

    A seat that never came to act has none.
    """
    if not turns:
        return []
    starts = [number for number, turn in enumerate(turns) if number == 0 or turn.restarts]
    spans: list[tuple[int, Sequence[Turn]]] = []
    for start, stop in zip(starts, [*starts[1:], len(turns)], strict=True):
        acting = [number for number in range(start, stop) if turns[number].action]
        if acting:
            spans.append((start, turns[start : acting[-1] + 1]))
    return spans


def _joined(seat: str, start: int, span: Sequence[Turn]) -> tuple[str, ModelInput]:
    where = f"seat {seat!r}, turns {start}-{start + len(span) - 1}"
    if not len(span[0].observation):
        raise DataError(f"{where}: observation is empty; an action needs at least one token before it")
    return where, concatenate([part for turn in span for part in (turn.observation, ModelInput.of(turn.action))])


def _targets_row(span: Sequence[Turn], filler: T, of_action: Callable[[Turn, int], Sequence[T]]) -> tuple[T, ...]:
    """`filler` on observation tokens, `of_action(turn, index)` on action tokens; in target coordinates."""
    row: list[T] = []
    for index, turn in enumerate(span):
        row.extend([filler] * len(turn.observation))
        row.extend(of_action(turn, index))
    return tuple(row[1:])


def _rows_of(span: Sequence[Turn], start: int, rows: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """The span's part of rows per turn and action token; in target coordinates."""
    return _targets_row(span, 0.0, lambda _, index: rows[start + index])


def _per_token(trajectory: Trajectory, name: str, entries: Sequence[float | Sequence[float]]) -> list[Sequence[float]]:
    """A row per turn, one entry per action token."""
    turns = trajectory.turns
    if len(entries) != len(turns):
        raise DataError(f"seat {trajectory.seat!r}: {len(entries)} {name} for {len(turns)} turns")
    rows = [
        [entry] * len(turn.action) if isinstance(entry, int | float) else entry
        for entry, turn in zip(entries, turns, strict=True)
    ]
    for number, (row, turn) in enumerate(zip(rows, turns, strict=True)):
        if len(row) != len(turn.action):
            raise DataError(
                f"seat {trajectory.seat!r}, turn {number}: {len(row)} {name} for {len(turn.action)} action tokens"
            )
    return rows


def _check_sampled(where: str, turn: Turn) -> None:
    if not turn.action:
        return
    if turn.logprobs is None:
        raise DataError(f"{where}: logprobs missing; only actions sampled with log-probs can be trained by RL")
    if turn.sampling is not None and (turn.sampling.top_p < 1 or turn.sampling.top_k > 0):
        raise DataError(
            f"{where}: sampled with top_p {turn.sampling.top_p} and top_k {turn.sampling.top_k}; the trainer scores "
            "the whole distribution, so RL data needs top_p 1 and top_k -1"
        )


def _temperature(where: str, span: Sequence[Turn]) -> float:
    found = {turn.sampling.temperature for turn in span if turn.sampling is not None and turn.action}
    if len(found) > 1:
        raise DataError(f"{where}: temperatures {sorted(found)} in one datum; sample all turns at one temperature")
    return found.pop() if found else 1.0


def _check_row(where: str, name: str, row: Sequence[float], length: int) -> None:
    if len(row) != length:
        raise DataError(f"{where}: {name} has {len(row)} entries for {length} targets")
    for position, value in enumerate(row):
        if not math.isfinite(value):
            raise DataError(f"{where}: {name}[{position}] is {value}; finite numbers are needed")
