"""tinker_actors' trainer."""

from __future__ import annotations

import tempfile
from collections.abc import Callable

from benchmarks.training_peers import ALPHA, LEARNING_RATE, POLICIES, RANK, Sequence, groups_of_8, ragged, small_batches
from tinker_actors.data import Datum, ModelInput
from tinker_actors.policies import PolicySpec
from tinker_actors.training import AdamParams, LossConfig, TrainingEngine

TAUGHT, REINFORCED = LossConfig(name="cross_entropy"), LossConfig(name="importance_sampling")


def supervised(sequence: Sequence) -> Datum:
    """The reply with weight 1."""
    tokens = sequence.tokens
    weights = [0.0] * (len(sequence.prompt) - 1) + [1.0] * len(sequence.reply)
    return Datum(model_input=ModelInput.of(tokens[:-1]), targets=tuple(tokens[1:]), weights=tuple(weights))


def reinforced(sequence: Sequence, index: int) -> Datum:
    """The reply with advantage 1 or -1."""
    tokens, count = sequence.tokens, len(sequence.reply)
    before = len(sequence.prompt) - 1
    return Datum(
        model_input=ModelInput.of(tokens[:-1]),
        targets=tuple(tokens[1:]),
        mask=(0,) * before + (1,) * count,
        logprobs=(0.0,) * before + (-10.0,) * count,
        advantages=(0.0,) * before + ((-1.0) ** index,) * count,
        sampled_tokens=count,
    )


class System:
    """A policy for the steps of one, and eight for those of eight."""

    def __init__(self, model: str) -> None:
        self.engine = TrainingEngine(model, tempfile.mkdtemp())
        self.vocabulary = int(self.engine.base.config.vocab_size)
        self.spec = PolicySpec(base_model=model, rank=RANK, alpha=ALPHA)
        self.policy = self.engine.create(self.spec)
        self.eight: list[str] = []

    def step_ragged(self, size: int, _: int) -> tuple[int, Callable[[], None]]:
        """A supervised step."""
        return self._step([supervised(sequence) for sequence in ragged(size, self.vocabulary)], TAUGHT)

    def step_group_of_8(self, size: int, _: int) -> tuple[int, Callable[[], None]]:
        """A policy-gradient step."""
        sequences = groups_of_8(size, self.vocabulary)
        return self._step([reinforced(sequence, index) for index, sequence in enumerate(sequences)], REINFORCED)

    def eight_policies(self, size: int, _: int) -> tuple[int, Callable[[], None]]:
        """Gradients of eight policies."""
        for policy in self.eight:  # what the last round left
            self.engine.optim_step(policy, AdamParams(learning_rate=LEARNING_RATE))
        while len(self.eight) < POLICIES:
            self.eight.append(self.engine.create(self.spec))
        batches = [
            (policy, [reinforced(sequence, index) for index, sequence in enumerate(own)], REINFORCED)
            for policy, own in zip(self.eight, small_batches(size, self.vocabulary), strict=True)
        ]
        tokens = sum(len(datum) + 1 for _, datums, _ in batches for datum in datums)
        return tokens, lambda: self.gradients(batches)

    eight_policies_x4 = eight_policies_x16 = eight_policies

    def gradients(self, batches: list[tuple[str, list[Datum], LossConfig]]) -> None:
        """Those of all policies, in one pass."""
        self.engine.forward_backward_many(batches)

    def _step(self, datums: list[Datum], loss: LossConfig) -> tuple[int, Callable[[], None]]:
        def step() -> None:
            self.engine.forward_backward(self.policy, datums, loss)
            self.engine.optim_step(self.policy, AdamParams(learning_rate=LEARNING_RATE))

        return sum(len(datum) + 1 for datum in datums), step
