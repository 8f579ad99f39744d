"""The systems that `benchmarks.training` compares, one module each, and what a case is."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

SYSTEMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "tinker_actors": ("ours", ("tinker_actors",)),
    "one_by_one": ("one_by_one", ("tinker_actors",)),
    "peft_loop": ("peft_loop", ("peft", "transformers")),
    "peft_row_by_row": ("peft_row_by_row", ("peft", "transformers")),
    "trl": ("on_trl", ("trl", "peft", "transformers")),
}
"""Each system's module here and what must be installed for it."""

RANK, ALPHA, LEARNING_RATE = 16, 32, 1e-4
"""The adapter (on all linear layers but the head), and AdamW's step."""

ROWS = (8, 4, 2, 1)
"""The rows of a padded micro-batch that a peer may take; it takes the most that fit into memory."""

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
        longest: Tokens of the longest sequence.
        small: Whether the model is a small one, so that several long padded rows fit into memory.
        systems: Who takes part.
    """

    size: int
    quick: int
    longest: int
    systems: tuple[str, ...]
    small: bool = False


_PAIR = ("tinker_actors", "one_by_one")

CASES: dict[str, Case] = {
    "step_ragged": Case(
        size=16, quick=8, longest=1024, small=True, systems=("tinker_actors", "peft_loop", "peft_row_by_row", "trl")
    ),
    "step_group_of_8": Case(size=4, quick=2, longest=240, systems=("tinker_actors", "peft_loop")),
    "eight_policies": Case(size=1, quick=1, longest=16, systems=_PAIR),
    "eight_policies_x4": Case(size=4, quick=4, longest=16, systems=_PAIR),
    "eight_policies_x16": Case(size=16, quick=16, longest=16, systems=_PAIR),
}


def peer_megabytes(config: Mapping[str, int], positions: int) -> float:
    """About what a plain loop with these many padded positions in a micro-batch holds at its peak, in MB.

    A position keeps some 24 vectors as wide as the hidden state and eight as wide as the feed-forward layer in
    every layer, and five as wide as the vocabulary: logits, log-softmax, and the gradients of both, one of them twice.

    Args:
        config: `hidden_size`, `intermediate_size`, `num_hidden_layers`, `vocab_size`, as in a model's config.json.
        positions: Rows times the longest row's length.
    """
    hidden, wide, layers = (config[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers"))
    vocabulary = config["vocab_size"]
    weights = vocabulary * hidden + layers * (3 * hidden * wide + 3 * hidden**2)
    return 450 + 4e-6 * (weights + positions * (layers * (24 * hidden + 8 * wide) + 5 * vocabulary))


def rows_within(megabytes: float, config: Mapping[str, int], longest: int) -> int:
    """The most rows of `longest` tokens that a peer holds in this much memory; 0 if not even one fits."""
    return next((rows for rows in ROWS if peer_megabytes(config, rows * longest) <= megabytes), 0)


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
