"""AdamW with its moments in 8 bits: blocks of 256 numbers, each a code from a fixed book times the block's largest.

The books are those of dynamic quantisation (Dettmers et al. 2022, section 2.2): seven decades, each of twice as many
levels as the one below, so that the largest numbers are told apart best. The second moment is held as its root, which
halves the decades that it spans, and one that isn't 0 is never rounded to 0: no step gets out of hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

BLOCK = 256
"""Numbers that share a scale."""


def _book(finest: int, *, signed: bool) -> Tensor:
    """The 256 levels, ascending; `finest` is the number of positive ones in the lowest decade."""
    levels = [0.0, 1.0]
    for decade in range(7):
        count = finest * 2**decade
        width = 0.9 / count
        values = [10.0 ** (decade - 6) * (0.1 + width * (place + 0.5)) for place in range(count)]
        levels += values
        if signed:
            # -1 takes the place of the smallest negative level, so that a block's largest keeps its size either way
            levels += [-value for value in values] if decade else [-1.0]
    return torch.tensor(sorted(levels))


SIGNED = _book(1, signed=True)
UNSIGNED = _book(2, signed=False)


def quantise(values: Tensor, book: Tensor) -> tuple[Tensor, Tensor]:
    """Codes, shape (n,) uint8, and the scale of each block, for n numbers in a row."""
    blocks = torch.nn.functional.pad(values, (0, -values.numel() % BLOCK)).view(-1, BLOCK)
    scales = blocks.abs().amax(1)
    shares = blocks / scales.clamp(min=torch.finfo(scales.dtype).tiny)[:, None]
    book = book.to(values.device)
    codes = torch.bucketize(shares, (book[1:] + book[:-1]) / 2).to(torch.uint8)
    if book[0] == 0:
        codes[(shares > 0) & (codes == 0)] = 1
    return codes.flatten()[: values.numel()].clone(), scales


def dequantise(codes: Tensor, scales: Tensor, book: Tensor) -> Tensor:
    """The numbers that codes and scales stand for, shape (n,)."""
    return book.to(codes.device)[codes.int()] * scales.repeat_interleave(BLOCK)[: codes.numel()]


class AdamW8bit(torch.optim.Optimizer):
    """AdamW (Loshchilov and Hutter 2019) that keeps two bytes and a little per number between its steps."""

    def __init__(self, params: Iterable[Tensor]) -> None:
        super().__init__(params, {"lr": 0.0, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One step along the gradients that the parameters hold; `closure` has no meaning here."""
        del closure
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    _step(parameter, parameter.grad, self.state[parameter], group)


def _step(parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
    beta1, beta2 = group["betas"]
    row = gradient.flatten().float()
    if state:
        mean = dequantise(state["mean_codes"], state["mean_scales"], SIGNED)
        root = dequantise(state["root_codes"], state["root_scales"], UNSIGNED)
    else:
        state["step"] = torch.zeros(())
        mean, root = torch.zeros_like(row), torch.zeros_like(row)
    state["step"] += 1
    count = float(state["step"])
    mean.lerp_(row, 1 - beta1)
    root = (root.square_() * beta2).addcmul_(row, row, value=1 - beta2).sqrt_()
    divisor = (root / math.sqrt(1 - beta2**count)).add_(group["eps"])
    parameter.mul_(1 - group["lr"] * group["weight_decay"])
    moved = (mean / divisor).view(gradient.shape)
    parameter.add_(moved.to(parameter.dtype), alpha=-group["lr"] / (1 - beta1**count))
    state["mean_codes"], state["mean_scales"] = quantise(mean, SIGNED)
    state["root_codes"], state["root_scales"] = quantise(root, UNSIGNED)
