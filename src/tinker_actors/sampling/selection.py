"""From logits to tokens: penalties, temperature and truncation per row, seeded draws, and log-probs of what was drawn.

Each draw inverts the cumulative distribution at one uniform number that depends only on (seed, sample index,
position): a counter-based generator. So a sample doesn't depend on what shares its step, on the order of requests or
on the number of samplers.

Shape suffixes: B rows of a step, V vocabulary, K blocks of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tinker_actors.sampling.requests import SamplingParams

# The finaliser and increment of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014)
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_BLOCK = 256
_PIECE = 2**18  # logits of a thread that are worked on at once: they stay in its cache


def row_keys(seeds: Sequence[int], sample_indices: Sequence[int]) -> NDArray[np.uint64]:
    """One key per row, from its request's seed and its sample index, shape (B,)."""
    seeds_b = np.asarray(seeds, dtype=np.uint64)
    indices_b = np.asarray(sample_indices, dtype=np.uint64)
    # the seed is mixed on its own first: seed 0 sample 1 must not meet seed 1 sample 0
    return _mix(_mix(seeds_b + _GAMMA) + (indices_b + np.uint64(1)) * _GAMMA)


def uniforms(keys_b: NDArray[np.uint64], positions: int | Sequence[int]) -> NDArray[np.float64]:
    """One number in [0, 1) per row for the token at its position of its sample, shape (B,)."""
    places_b = np.broadcast_to(np.asarray(positions, dtype=np.uint64), keys_b.shape) + np.uint64(1)
    bits_b = _mix(keys_b + places_b * _GAMMA)
    # 52 bits keep the largest number times any positive float below that float
    return (bits_b >> np.uint64(12)).astype(np.float64) * np.float64(2.0**-52)


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return z ^ (z >> np.uint64(31))


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """What a step drew.

    Attributes:
        tokens: Ids, by row.
        logprobs: Natural log-probs under the distribution drawn from. NaN for a row whose logits hold NaN.
        tops: The most likely tokens with their log-probs, as many as each row asked for.
    """

    tokens: list[int]
    logprobs: list[float]
    tops: list[tuple[tuple[int, float], ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """How each row of a step selects its token; the same as long as the rows are.

    Attributes:
        params: One per row.
        keys_b: Random keys, shape (B,).
        temperature_b1: Divisors, 1 for greedy rows, shape (B, 1); None if all are 1.
        greedy: Which rows are greedy, shape (B,).
        any_greedy: Whether one is.
        all_greedy: Whether all are.
    """

    params: Sequence[SamplingParams]
    keys_b: NDArray[np.uint64]
    temperature_b1: Tensor | None
    greedy: Tensor
    any_greedy: bool
    all_greedy: bool

    @classmethod
    def of(
        cls, params: Sequence[SamplingParams], keys_b: NDArray[np.uint64], device: torch.device | None = None
    ) -> Selector:
        """Build from one `SamplingParams` per row, for logits on a device."""
        divisors = [1.0 if entry.greedy else float(entry.temperature) for entry in params]
        greedy = [entry.greedy for entry in params]
        plain = all(divisor == 1.0 for divisor in divisors)
        return cls(
            params=params,
            keys_b=keys_b,
            temperature_b1=None if plain else torch.tensor(divisors, device=device)[:, None],
            greedy=torch.tensor(greedy, device=device),
            any_greedy=any(greedy),
            all_greedy=all(greedy),
        )

    def select(
        self,
        logits_bv: Tensor,
        positions: int | Sequence[int],
        *,
        said: Sequence[tuple[Sequence[int], Sequence[int]]] = (),
        allowed: Sequence[Tensor | None] = (),
    ) -> Drawn:
        """Draw one token per row.

        Args:
            logits_bv: Raw logits of the base model and adapter, shape (B, V).
            positions: Index of the token within its sample, from 0.
            said: For each row what was given and what was drawn; needed where penalties are.
            allowed: For each row which tokens its grammar allows, shape (V,), or None for all.
        """
        scaled_bv = logits_bv.float()
        for row, entry in enumerate(self.params):
            if entry.biases:
                scaled_bv = _own(scaled_bv, logits_bv)
                bias(scaled_bv[row], entry, *said[row])
        for row, mask in enumerate(allowed):
            if mask is not None:
                scaled_bv = _own(scaled_bv, logits_bv)
                scaled_bv[row].masked_fill_(~mask.to(scaled_bv.device), -torch.inf)
        if self.temperature_b1 is not None:
            scaled_bv = scaled_bv / self.temperature_b1
        for row, entry in enumerate(self.params):
            if not entry.greedy and (entry.top_k > 0 or entry.top_p < 1 or entry.min_p > 0):
                scaled_bv = _own(scaled_bv, logits_bv)
                scaled_bv[row] = truncated(scaled_bv[row], entry.top_k, entry.top_p, entry.min_p)
        best_b = scaled_bv.max(-1).indices if self.any_greedy else None
        most_b, sums_bk = _weigh(scaled_bv)
        cumulative_bk = sums_bk.cumsum(-1)
        total_b = cumulative_bk[:, -1]
        if best_b is not None and self.all_greedy:
            tokens_b = best_b
        else:
            tokens_b = self._draw(scaled_bv, most_b, cumulative_bk, positions, best_b)
        chosen_b = scaled_bv.gather(1, tokens_b[:, None])[:, 0]
        logprobs_b = (chosen_b - most_b).double() - total_b.log()
        tops = [
            _tops(scaled_bv[row] - most_b[row], total_b[row], entry.logprobs) for row, entry in enumerate(self.params)
        ]
        return Drawn(tokens=tokens_b.tolist(), logprobs=logprobs_b.tolist(), tops=tops)

    def _draw(
        self,
        scaled_bv: Tensor,
        most_b: Tensor,
        cumulative_bk: Tensor,
        positions: int | Sequence[int],
        best_b: Tensor | None,
    ) -> Tensor:
        """Find the block that holds the number, then the token in it: never one of weight 0."""
        size = scaled_bv.shape[1]
        device = scaled_bv.device
        aim_b1 = torch.from_numpy(uniforms(self.keys_b, positions)).to(device)[:, None] * cumulative_bk[:, -1:]
        block_b1 = torch.searchsorted(cumulative_bk, aim_b1, right=True).clamp_(max=cumulative_bk.shape[1] - 1)
        before_b1 = torch.where(block_b1 > 0, cumulative_bk.gather(1, (block_b1 - 1).clamp_(min=0)), 0.0)
        ids = block_b1 * _BLOCK + torch.arange(_BLOCK, device=device)
        inside = (scaled_bv.gather(1, ids.clamp(max=size - 1)) - most_b[:, None]).exp_().double()
        inside.masked_fill_(ids >= size, 0.0)
        within = inside.cumsum(-1)
        # rounding may leave the number just beyond the block: then it is the last token of any weight
        left_b1 = torch.minimum(aim_b1 - before_b1, within[:, -1:] * (1 - 2.0**-40)).clamp_(min=0.0)
        tokens_b = block_b1[:, 0] * _BLOCK + torch.searchsorted(within, left_b1, right=True)[:, 0]
        tokens_b = tokens_b.clamp_(max=size - 1)
        return tokens_b if best_b is None else torch.where(self.greedy, best_b, tokens_b)


def _own(scaled_bv: Tensor, logits_bv: Tensor) -> Tensor:
    """A copy where it is still the caller's."""
    return scaled_bv.clone() if scaled_bv.data_ptr() == logits_bv.data_ptr() else scaled_bv


def _weigh(scaled_bv: Tensor) -> tuple[Tensor, Tensor]:
    """The largest logit of each row, shape (B,), and the sums of the weights relative to it by block, shape (B, K).

    The weights themselves are nowhere kept: on the CPU reading the memory that they take is dearer than computing them.
    """
    rows, size = scaled_bv.shape
    whole = size // _BLOCK * _BLOCK
    most: list[Tensor] = []
    sums: list[Tensor] = []
    count = min(rows, max(1, _PIECE * torch.get_num_threads() // size))
    room = scaled_bv.new_empty(count, size)
    for logits in scaled_bv.split(count):
        most.append(logits.amax(-1))
        weights = torch.sub(logits, most[-1][:, None], out=room[: len(logits)]).exp_()
        parts: list[Tensor] = []
        if whole:
            parts.append(weights[:, :whole].reshape(len(logits), -1, _BLOCK).sum(-1).double())
        if whole < size:
            parts.append(weights[:, whole:].double().sum(-1, keepdim=True))
        sums.append(parts[0] if len(parts) == 1 else torch.cat(parts, -1))
    return torch.cat(most), torch.cat(sums)


def _tops(shifted_v: Tensor, total: Tensor, count: int) -> tuple[tuple[int, float], ...]:
    if not count:
        return ()
    values, ids = shifted_v.topk(min(count, shifted_v.shape[0]))
    return tuple(zip(ids.tolist(), (values.double() - total.log()).tolist(), strict=True))


def bias(logits_v: Tensor, params: SamplingParams, given: Sequence[int], drawn: Sequence[int]) -> None:
    """Change one row's logits in place: repetition, presence and frequency penalties, then the given biases.

    Args:
        logits_v: Shape (V,).
        params: What to apply.
        given: Prompt tokens, which the repetition penalty counts.
        drawn: Tokens of the sample so far, which all penalties count.
    """
    if params.repetition_penalty != 1 and (given or drawn):
        ids = torch.tensor(sorted({*given, *drawn}), device=logits_v.device)
        own = logits_v[ids]
        logits_v[ids] = torch.where(own > 0, own / params.repetition_penalty, own * params.repetition_penalty)
    if drawn and (params.presence_penalty or params.frequency_penalty):
        ids, counts = torch.tensor(drawn, device=logits_v.device).unique(return_counts=True)
        logits_v[ids] -= params.presence_penalty + params.frequency_penalty * counts.float()
    for token, amount in params.logit_bias:
        logits_v[token] += amount


def truncated(scaled_v: Tensor, top_k: int, top_p: float, min_p: float = 0.0) -> Tensor:
    """Set the logits of the tokens that top-k, then top-p, then min-p leave out to -inf.

    Args:
        scaled_v: Logits after temperature, shape (V,).
        top_k: How many of the most likely tokens stay; -1 is off. Of equal ones the lower id stays.
        top_p: The smallest set whose mass, among what top-k left, reaches this stays; 1 is off.
        min_p: Tokens less likely than this fraction of the most likely one go; 0 is off.
    """
    size = scaled_v.shape[0]
    if top_k > 0 or top_p < 1:
        values, order = scaled_v.sort(descending=True, stable=True)
        kept = min(top_k, size) if top_k > 0 else size
        values, order = values[:kept], order[:kept]
        if top_p < 1:
            probs = values.double().softmax(-1)
            # the first token always stays
            inside = int(((probs.cumsum(-1) - probs) < top_p).sum().clamp_(min=1))
            values, order = values[:inside], order[:inside]
        scaled_v = torch.full_like(scaled_v, -torch.inf).index_copy_(0, order, values)
    if min_p > 0:
        scaled_v = scaled_v.masked_fill(scaled_v < scaled_v.max() + float(np.log(min_p)), -torch.inf)
    return scaled_v


def logprobs_of(logits_tv: Tensor, targets: Sequence[int], temperature: float = 1.0) -> list[float]:
    """Natural log-probs of given tokens, one for each row of logits."""
    scaled_tv = logits_tv.float() if temperature == 1.0 else logits_tv.float() / temperature
    chosen_t = scaled_tv.gather(1, torch.tensor(targets, device=scaled_tv.device)[:, None])[:, 0]
    return (chosen_t - scaled_tv.logsumexp(-1)).tolist()
