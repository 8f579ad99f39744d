"""The systems that `benchmarks.training` compares, one module each, and what a case is."""

from __future__ import annotations

import random
from dataclasses import dataclass

SYSTEMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "tinker_actors": ("ours", ("tinker_actors",)),
    "one_by_one": ("one_by_one", ("tinker_actors",)),
    "peft_loop": ("peft_loop", ("peft", "transformers")),
    "trl": ("on_trl", ("trl", "peft", "transformers")),
}
"""Each system's module here and what must be installed for it."""

RANK, ALPHA, LEARNING_RATE, ROWS = 16, 32, 1e-4, 4
"""The adapter (on all linear layers but the head), AdamW's step, and the rows of a padded micro-batch."""

POLICIES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """One example: a prompt, a reply that is trained, and its group.

    Attributes:
        prompt: Token ids.
        reply: Token ids.
        group: Examples of one group have their prompt in common.
    """

    prompt: list[int]
    reply: list[int]
    group: int

    @property
    def tokens(self) -> list[int]:
        """Prompt and reply."""
        return self.prompt + self.reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One thing to measure.

    Attributes:
        size: Sequences (ragged), groups of 8, or sequences of each of 8 policies, in a round.
        quick: The same with `--quick`.
        systems: Who takes part.
    """

    size: int
    quick: int
    systems: tuple[str, ...]


CASES: dict[str, Case] = {
    "step_ragged": Case(size=16, quick=4, systems=("tinker_actors", "peft_loop", "trl")),
    "step_group_of_8": Case(size=4, quick=2, systems=("tinker_actors", "peft_loop")),
    "eight_policies": Case(size=1, quick=1, systems=("tinker_actors", "one_by_one")),
}


def ragged(count: int, vocabulary: int) -> list[Sequence]:
    """Lengths from 64 to 1024 tokens, evenly spread and shuffled; the second half of each is the reply."""
    luck = random.Random(0)
    lengths = [64 + round(960 * index / max(1, count - 1)) for index in range(count)]
    luck.shuffle(lengths)
    drawn = [_draw(luck, length, vocabulary) for length in lengths]
    return [
        Sequence(prompt=tokens[: len(tokens) // 2], reply=tokens[len(tokens) // 2 :], group=index)
        for index, tokens in enumerate(drawn)
    ]


def groups_of_8(count: int, vocabulary: int) -> list[Sequence]:
    """A prompt of 192 tokens for each group, replies of 16 to 48."""
    luck = random.Random(0)
    found: list[Sequence] = []
    for group in range(count):
        prompt = _draw(luck, 192, vocabulary)
        found += [
            Sequence(prompt=prompt, reply=_draw(luck, luck.randint(16, 48), vocabulary), group=group) for _ in range(8)
        ]
    return found


def small_batches(count: int, vocabulary: int) -> list[list[Sequence]]:
    """For each of 8 policies, sequences of 12 tokens and replies of 4."""
    luck = random.Random(0)
    return [
        [Sequence(prompt=_draw(luck, 12, vocabulary), reply=_draw(luck, 4, vocabulary), group=0) for _ in range(count)]
        for _ in range(POLICIES)
    ]


def _draw(luck: random.Random, count: int, vocabulary: int) -> list[int]:
    return [luck.randrange(20, vocabulary) for _ in range(count)]
