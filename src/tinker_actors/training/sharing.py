"""Prefixes that several examples begin with, computed once.

The examples of one prompt make a row that holds their prefix tree: every node is a token, stands at its depth's
position and attends to its ancestors only. Its hidden state is therefore that of the plain row, whoever else shares
the row; log-probs agree with the plain path up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedConfig

from tinker_actors.training.batching import Example

MODEL_TYPES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""Decoders whose layers mix positions by nothing but masked attention over rotary positions."""

ROOT = -1


class PrefixTree:
    """The distinct prefixes of some examples; nodes are numbered so that parents come first.

    Attributes:
        tokens: Token of each node.
        depths: Position of each node.
        parents: Parent of each node, `ROOT` for the first ones.
        examples: The examples held.
        paths: For each example the node of each of its positions.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.depths: list[int] = []
        self.parents: list[int] = []
        self.examples: list[Example] = []
        self.paths: list[list[int]] = []
        self._children: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self.tokens)

    def missing(self, tokens: Sequence[int]) -> int:
        """How many nodes these tokens would add."""
        node = ROOT
        for depth, token in enumerate(tokens):
            child = self._children.get((node, token))
            if child is None:
                return len(tokens) - depth
            node = child
        return 0

    def add(self, example: Example) -> None:
        """Hold an example."""
        path: list[int] = []
        node = ROOT
        for depth, token in enumerate(example.tokens):
            child = self._children.setdefault((node, token), len(self.tokens))
            if child == len(self.tokens):
                self.tokens.append(token)
                self.depths.append(depth)
                self.parents.append(node)
            node = child
            path.append(node)
        self.examples.append(example)
        self.paths.append(path)


def can_pack(config: PreTrainedConfig) -> bool:
    """Whether the model's attention lets a row hold several examples, and trees of them."""
    layers = getattr(config, "layer_types", None) or ["full_attention"]
    windowed = getattr(config, "use_sliding_window", True) and getattr(config, "sliding_window", None)
    return (
        config.model_type in MODEL_TYPES
        and not windowed
        and set(layers) == {"full_attention"}
        and config._attn_implementation in ("sdpa", "eager")
    )


def grow(examples: Sequence[Example], budget: int, hidden_size: int) -> list[PrefixTree]:
    """Trees of examples whose prompts, up to the first scored target, are equal; at most `budget` nodes each.

    An example joins a tree while that costs less than a row of its own. A token's linear layers cost about
    24 · hidden² operations and each pair of positions 4 · hidden, so n positions cost n · 6 · hidden + n² units.
    """

    def cost(nodes: int) -> int:
        return nodes * 6 * hidden_size + nodes**2

    open_trees: dict[tuple[int, ...], PrefixTree] = {}
    trees: list[PrefixTree] = []
    for example in examples:
        prompt = example.tokens[: example.positions[0] + 1]
        tree = open_trees.get(prompt)
        if tree is not None:
            larger = len(tree) + tree.missing(example.tokens)
            if larger > budget or cost(larger) - cost(len(tree)) > cost(len(example.tokens)):
                tree = None
        if tree is None:
            tree = open_trees[prompt] = PrefixTree()
            trees.append(tree)
        tree.add(example)
    return trees
