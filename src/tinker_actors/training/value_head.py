# ruff: noqa: N803 (tensor names bear shape suffixes)
"""A value head: one number for what a policy may expect from a place in its text.

It reads the hidden state from which the next token is predicted, so that the value of an action token is that of what
stands before it. It belongs to the training state alone: snapshots and exports don't have it.

Shape suffixes: P places, H hidden width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

PREFIX = "value_head"
"""What the names of its parameters begin with."""


class ValueHead(nn.Module):
    """w · h + b in fp32, at first 0 everywhere, which needs no random numbers.

    Args:
        width: Of the hidden state.
        device: Where the policy computes.
    """

    def __init__(self, width: int, device: torch.device) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 1, dtype=torch.float32, device=device)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, hidden_PH: Tensor) -> Tensor:
        """The values, shape (P,); the gradient goes on into the hidden states."""
        return self.linear(hidden_PH.float())[:, 0]

    def named(self) -> dict[str, nn.Parameter]:
        """Its parameters by the names that they have in a policy's state."""
        return {f"{PREFIX}.{name}": parameter for name, parameter in self.linear.named_parameters()}
