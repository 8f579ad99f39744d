# ruff: noqa: N806 (tensor names bear shape suffixes)
"""PEFT and a plain loop over transformers' model: padded micro-batches in the order given, all logits, AdamW.

Shape suffixes: B rows, L positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

from benchmarks.training_peers import ALPHA, LEARNING_RATE, RANK, Sequence, groups_of_8, ragged


class System:
    """An adapted model and its optimizer."""

    def __init__(self, model: str) -> None:
        base: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="sdpa")
        config = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear", task_type="CAUSAL_LM")
        self.model: Any = get_peft_model(base, config).train()
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE)
        self.vocabulary = int(base.config.vocab_size)

    def step_ragged(self, size: int, rows: int) -> tuple[int, Callable[[], None]]:
        """A supervised step."""
        return self._step(ragged(size, self.vocabulary), _supervised, rows)

    def step_group_of_8(self, size: int, rows: int) -> tuple[int, Callable[[], None]]:
        """A policy-gradient step."""
        return self._step(groups_of_8(size, self.vocabulary), _reinforced, rows)

    def _step(
        self, sequences: list[Sequence], loss: Callable[[Tensor, Tensor], Tensor], rows: int
    ) -> tuple[int, Callable[[], None]]:
        def step() -> None:
            for first in range(0, len(sequences), rows):
                tokens_BL, attention_BL, labels_BL = padded(sequences[first : first + rows])
                logits_BLV = self.model(input_ids=tokens_BL, attention_mask=attention_BL, use_cache=False).logits
                loss(logits_BLV[:, :-1].flatten(0, 1).float(), labels_BL[:, 1:].flatten()).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

        return sum(len(sequence.tokens) for sequence in sequences), step


def padded(sequences: list[Sequence]) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, attention and labels, padded on the right; -100 where nothing is trained."""
    width = max(len(sequence.tokens) for sequence in sequences)
    tokens_BL = torch.zeros(len(sequences), width, dtype=torch.long)
    attention_BL, labels_BL = torch.zeros_like(tokens_BL), torch.full_like(tokens_BL, -100)
    for row, sequence in enumerate(sequences):
        length = len(sequence.tokens)
        tokens_BL[row, :length] = torch.tensor(sequence.tokens)
        attention_BL[row, :length] = 1
        labels_BL[row, len(sequence.prompt) : length] = torch.tensor(sequence.reply)
    return tokens_BL, attention_BL, labels_BL


def _supervised(logits: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(logits, labels, reduction="sum", ignore_index=-100)


def _reinforced(logits: Tensor, labels: Tensor) -> Tensor:
    ratio = (-cross_entropy(logits, labels, reduction="none", ignore_index=-100) + 10.0).exp()
    return -(ratio * (labels != -100)).sum()
