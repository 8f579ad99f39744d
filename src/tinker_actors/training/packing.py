# ruff: noqa: N806, N815 (tensor names bear shape suffixes)
"""Examples without padding: one row of tokens in which every example, or tree of examples, attends to itself alone.

A block is one policy's share of a pass. It is laid out from that policy's examples alone, so its arithmetic is the same
whoever shares the pass.

Shape suffixes: T tokens of a block, B segments of a bucket, L positions of its longest, P distributions that targets
are scored under, N scored targets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tinker_actors.training.batching import Example
from tinker_actors.training.sharing import ROOT, PrefixTree

# Attention of a few positions costs its call and little else, so short segments share one whatever their lengths.
_SHORT = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Segments that follow one another and attend in one call.

    Attributes:
        lengths: Tokens of each segment, none of them 0.
        sees_BLL: Whether a position (second axis) sees another (last axis), for trees; None where every position sees
            those before it in its segment.
    """

    lengths: tuple[int, ...]
    sees_BLL: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One policy's share of a pass.

    Attributes:
        tokens_T: Input ids, segment after segment.
        positions_T: Position ids, which start anew in each segment.
        buckets: How the segments attend; their lengths sum to T.
        places_P: The token whose output gives each distribution.
        temperatures_P: Divisors of the logits, fp32.
        distributions_N: The distribution of each scored target, ascending.
        targets_N: The scored target ids.
        slots_N: The place of each scored target among those of the whole batch.
    """

    tokens_T: Tensor
    positions_T: Tensor
    buckets: tuple[Bucket, ...]
    places_P: Tensor
    temperatures_P: Tensor
    distributions_N: Tensor
    targets_N: Tensor
    slots_N: Tensor

    def __len__(self) -> int:
        return self.tokens_T.shape[0]


def packed_blocks(trees: Sequence[PrefixTree], budget: int) -> list[Block]:
    """Trees (of one example or more) in blocks of at most `budget` tokens, like sizes together.

    A tree larger than the budget makes a block of its own.
    """
    # those that are one chain need no mask, so they stand apart
    ordered = sorted(range(len(trees)), key=lambda index: (not _is_chain(trees[index]), -len(trees[index]), index))
    groups: list[list[PrefixTree]] = []
    room = 0
    for index in ordered:
        tree = trees[index]
        if len(tree) > room:
            groups.append([])
            room = max(budget, len(tree))
        groups[-1].append(tree)
        room -= len(tree)
    return [_block(group) for group in groups]


def _block(trees: Sequence[PrefixTree]) -> Block:
    scored: list[tuple[int, float, int, int]] = []
    first = 0
    for tree in trees:
        for example, path in zip(tree.examples, tree.paths, strict=True):
            rows = zip(example.positions, example.targets, example.scored, strict=True)
            scored += [
                (first + path[position], example.temperature, target, example.start + index)
                for position, target, index in rows
            ]
        first += len(tree)
    scored.sort()
    pairs = [(place, temperature) for place, temperature, _, _ in scored]
    distributions = {pair: number for number, pair in enumerate(dict.fromkeys(pairs))}
    return Block(
        tokens_T=torch.tensor([token for tree in trees for token in tree.tokens]),
        positions_T=torch.tensor([depth for tree in trees for depth in tree.depths]),
        buckets=tuple(_bucket(group) for group in _buckets(trees)),
        places_P=torch.tensor([place for place, _ in distributions]),
        temperatures_P=torch.tensor([temperature for _, temperature in distributions]),
        distributions_N=torch.tensor([distributions[pair] for pair in pairs]),
        targets_N=torch.tensor([target for _, _, target, _ in scored]),
        slots_N=torch.tensor([slot for _, _, _, slot in scored]),
    )


def _buckets(trees: Sequence[PrefixTree]) -> Iterator[list[PrefixTree]]:
    """Runs of trees of like size, the largest first as they come."""
    group: list[PrefixTree] = []
    for tree in trees:
        if group and (
            _is_chain(tree) != _is_chain(group[0]) or (len(group[0]) > _SHORT and len(tree) * 4 < len(group[0]) * 3)
        ):
            yield group
            group = []
        group.append(tree)
    if group:
        yield group


def _bucket(trees: Sequence[PrefixTree]) -> Bucket:
    lengths = tuple(len(tree) for tree in trees)
    if all(_is_chain(tree) for tree in trees):
        return Bucket(lengths=lengths, sees_BLL=None)
    width = max(lengths)
    sees_BLL = np.tile(np.eye(width, dtype=np.bool_), (len(trees), 1, 1))
    for tree, sees_LL in zip(trees, sees_BLL, strict=True):
        for node, parent in enumerate(tree.parents):
            if parent != ROOT:
                sees_LL[node, :node] = sees_LL[parent, :node]
    return Bucket(lengths=lengths, sees_BLL=torch.from_numpy(sees_BLL))


def _is_chain(tree: PrefixTree) -> bool:
    return len(tree.examples) == 1


def chains(examples: Sequence[Example]) -> list[PrefixTree]:
    """A tree for each example, so that nothing is shared."""
    trees: list[PrefixTree] = []
    for example in examples:
        tree = PrefixTree()
        tree.add(example)
        trees.append(tree)
    return trees
