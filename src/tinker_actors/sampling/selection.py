"""From logits to tokens: temperature, top-k and top-p per row, seeded draws, and the log-prob of what was drawn.

Each draw inverts the cumulative distribution at one uniform number that depends only on (seed, sample index,
position): a counter-based generator. So a sample doesn't depend on what shares its batch, on the order of requests or
on the number of samplers.

Shape suffixes: B rows of a batch, R rows that truncate, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from tinker_actors.sampling.requests import SamplingParams

# The finaliser and increment of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014)
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def row_keys(seeds: Sequence[int], sample_indices: Sequence[int]) -> NDArray[np.uint64]:
    """One key per row, from its request's seed and its sample index, shape (B,)."""
    seeds_b = np.asarray(seeds, dtype=np.uint64)
    indices_b = np.asarray(sample_indices, dtype=np.uint64)
    # the seed is mixed on its own first: seed 0 sample 1 must not meet seed 1 sample 0
    return _mix(_mix(seeds_b + _GAMMA) + (indices_b + np.uint64(1)) * _GAMMA)


def uniforms(keys_b: NDArray[np.uint64], position: int) -> NDArray[np.float64]:
    """One number in [0, 1) per row for the token at `position` of its sample, shape (B,)."""
    bits_b = _mix(keys_b + np.full(1, position + 1, dtype=np.uint64) * _GAMMA)
    # 52 bits keep the largest number times any positive float below that float
    return (bits_b >> np.uint64(12)).astype(np.float64) * np.float64(2.0**-52)


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return z ^ (z >> np.uint64(31))


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """How each row of a batch selects its tokens.

    Attributes:
        keys_b: Random keys, shape (B,).
        temperature_b1: Divisors, 1 for greedy rows, shape (B, 1); None if all are 1.
        greedy_b: Which rows are greedy, shape (B,); None if none is.
        truncating_r: Indices of the rows that use top-k or top-p, shape (R,); None if none does.
        top_k_r1: Candidates of those rows, shape (R, 1).
        top_p_r1: Nucleus mass of those rows, shape (R, 1).
    """

    keys_b: NDArray[np.uint64]
    temperature_b1: torch.Tensor | None
    greedy_b: torch.Tensor | None
    truncating_r: torch.Tensor | None
    top_k_r1: torch.Tensor | None
    top_p_r1: torch.Tensor | None

    @classmethod
    def of(cls, params: Sequence[SamplingParams], keys_b: NDArray[np.uint64], vocab_size: int) -> Selector:
        """Build from one `SamplingParams` per row."""
        divisors = [1.0 if entry.greedy else float(entry.temperature) for entry in params]
        greedy = [entry.greedy for entry in params]
        cut = [i for i, entry in enumerate(params) if not entry.greedy and (entry.top_k > 0 or entry.top_p < 1)]
        top_k = [[min(params[i].top_k, vocab_size) if params[i].top_k > 0 else vocab_size] for i in cut]
        top_p = [[float(params[i].top_p)] for i in cut]
        return cls(
            keys_b=keys_b,
            temperature_b1=None if all(t == 1.0 for t in divisors) else torch.tensor(divisors)[:, None],
            greedy_b=torch.tensor(greedy) if any(greedy) else None,
            truncating_r=torch.tensor(cut) if cut else None,
            top_k_r1=torch.tensor(top_k) if cut else None,
            top_p_r1=torch.tensor(top_p, dtype=torch.float64) if cut else None,
        )

    def select(self, logits_bv: torch.Tensor, position: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw one token per row.

        Args:
            logits_bv: Raw logits of the base model and adapter, shape (B, V).
            position: Index of the token within its sample, from 0.

        Returns:
            Token ids, int64, shape (B,), and their natural log-probs under the distribution drawn from, fp32, shape
            (B,). A row whose logits hold NaN gets a NaN log-prob.
        """
        scaled_bv = logits_bv.float()
        if self.temperature_b1 is not None:
            scaled_bv = scaled_bv / self.temperature_b1
        if self.truncating_r is not None and self.top_k_r1 is not None and self.top_p_r1 is not None:
            cut_rv = truncated(scaled_bv[self.truncating_r], self.top_k_r1, self.top_p_r1)
            scaled_bv = scaled_bv.index_copy(0, self.truncating_r, cut_rv)
        logprobs_bv = torch.log_softmax(scaled_bv, dim=-1)
        if self.greedy_b is None:
            tokens_b = self._draw(logprobs_bv, position)
        elif bool(self.greedy_b.all()):
            tokens_b = scaled_bv.argmax(-1)
        else:
            tokens_b = torch.where(self.greedy_b, scaled_bv.argmax(-1), self._draw(logprobs_bv, position))
        return tokens_b, logprobs_bv.gather(1, tokens_b[:, None])[:, 0]

    def _draw(self, logprobs_bv: torch.Tensor, position: int) -> torch.Tensor:
        # fp64: a cumulative sum over a large vocabulary in fp32 would shift the boundaries
        cumulative_bv = logprobs_bv.double().exp_().cumsum_(-1)
        uniform_b1 = torch.from_numpy(uniforms(self.keys_b, position))[:, None]
        # right=True finds the first token whose cumulative mass exceeds the number: never one of probability 0
        tokens_b1 = torch.searchsorted(cumulative_bv, uniform_b1 * cumulative_bv[:, -1:], right=True)
        return tokens_b1[:, 0].clamp_(max=logprobs_bv.shape[1] - 1)


def truncated(scaled_rv: torch.Tensor, top_k_r1: torch.Tensor, top_p_r1: torch.Tensor) -> torch.Tensor:
    """Set the logits of the tokens that top-k and then top-p leave out to -inf, shape (R, V).

    Args:
        scaled_rv: Logits after temperature, shape (R, V).
        top_k_r1: How many of the most likely tokens stay, shape (R, 1); V is off. Of equal ones the lower id stays.
        top_p_r1: The smallest set whose mass, among what top-k left, reaches this stays, shape (R, 1); 1 is off.
    """
    sorted_rv, order_rv = scaled_rv.sort(dim=-1, descending=True, stable=True)
    ranks_v = torch.arange(scaled_rv.shape[1])
    sorted_rv = sorted_rv.masked_fill(ranks_v >= top_k_r1, -torch.inf)
    probs_rv = sorted_rv.double().softmax(-1)
    before_rv = probs_rv.cumsum(-1) - probs_rv
    # `top_p < 1` guards rows without a nucleus from the rounding of the sum; the first token always stays
    outside_rv = (before_rv >= top_p_r1) & (top_p_r1 < 1) & (ranks_v > 0)
    sorted_rv = sorted_rv.masked_fill(outside_rv, -torch.inf)
    return torch.empty_like(scaled_rv).scatter_(1, order_rv, sorted_rv)
