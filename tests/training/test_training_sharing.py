import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tinker_actors.models import load_base
from tinker_actors.training import LossConfig
from tinker_actors.training.batching import Example, examples_of
from tinker_actors.training.engine import TrainingEngine
from tinker_actors.training.packing import chains, packed_blocks
from tinker_actors.training.sharing import PrefixTree, can_pack, grow

SHARED, PLAIN = (LossConfig(name="ppo", share_prompts=share) for share in (True, False))


def example(tokens, first=None, start=0):
    scored = tuple(range(len(tokens) - 1 if first is None else first, len(tokens)))
    return Example(
        start=start,
        tokens=tuple(tokens),
        scored=scored,
        positions=scored,
        targets=(1,) * len(scored),
        temperature=1.0,
    )


def test_a_prefix_is_held_once_and_branches_stand_side_by_side():
    tree = PrefixTree()
    for tokens in ([1, 2, 3, 4], [1, 2, 5], [1, 2, 3]):
        tree.add(example(tokens))
    assert tree.tokens == [1, 2, 3, 4, 5]
    assert tree.depths == [0, 1, 2, 3, 2]
    assert tree.parents == [-1, 0, 1, 2, 1]
    assert tree.paths == [[0, 1, 2, 3], [0, 1, 4], [0, 1, 2]]
    assert (tree.missing([1, 2, 5]), tree.missing([1, 2, 5, 6]), tree.missing([2])) == (0, 1, 1)


def test_a_node_sees_its_ancestors_and_nobody_else():
    trees = grow([example([1, 2, 3], first=1), example([1, 2, 5, 6], first=1)], 100, 64)
    (block,) = packed_blocks(trees, 100)
    assert block.tokens_T.tolist() == [1, 2, 3, 5, 6]
    assert block.positions_T.tolist() == [0, 1, 2, 2, 3]
    (bucket,) = block.buckets
    assert bucket.sees_BLL[0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 0, 1, 0],
        [1, 1, 0, 1, 1],
    ]


@given(st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=8), min_size=1, max_size=20), st.integers(1, 30))
def test_every_example_is_laid_out_once_at_its_own_tokens(rows, budget):
    examples = [example(row, first=min(2, len(row) - 1), start=100 * index) for index, row in enumerate(rows)]
    trees = grow(examples, budget, 16)
    assert all(len(tree) <= max(budget, len(tree.examples[0].tokens)) for tree in trees)
    for tree in trees:
        for held, path in zip(tree.examples, tree.paths, strict=True):
            assert [tree.tokens[node] for node in path] == list(held.tokens)
    slots = torch.cat([block.slots_N for block in packed_blocks(trees, budget)]).sort().values.tolist()
    assert slots == sorted(held.start + position for held in examples for position in held.scored)


def test_long_replies_to_a_short_prompt_are_not_crammed_into_one_row():
    # At hidden size 16 the pairs of 500 + 500 positions outweigh the single position that they share.
    replies = [example([1, *([token] * 500)], first=0) for token in (2, 3)]
    assert [len(tree) for tree in grow(replies, 10_000, 16)] == [501, 501]
    assert [len(tree) for tree in grow(replies, 10_000, 100_000)] == [1001]


def groups(make, seed=0):
    """Groups of one prompt with replies of unlike lengths, some of them equal, and two turns in some."""
    luck = random.Random(seed)
    datums = []
    for _ in range(4):
        prompt = [luck.randrange(7, 60) for _ in range(luck.randrange(3, 9))]
        for _ in range(5):
            action = [luck.randrange(7, 10) for _ in range(luck.randrange(1, 5))]
            logprobs = [luck.uniform(-6, -3) for _ in action]
            datums.append(make.rl(prompt, action, luck.uniform(-1, 1), logprobs))
    luck.shuffle(datums)
    return datums


@pytest.mark.parametrize("base", ["tiny-llama", "tiny-qwen3"])
def test_shared_prompts_give_the_plain_paths_log_probs_and_gradients(make, tmp_path, base):
    engine = TrainingEngine(base, tmp_path)
    generator = torch.Generator().manual_seed(7)
    noise = None
    found = []
    for loss in (SHARED, PLAIN):
        policy = engine.create(make.spec(base_model=base))
        parameters = engine._policies[policy].parameters.values()
        noise = noise or [torch.randn(parameter.shape, generator=generator) * 0.05 for parameter in parameters]
        for parameter, change in zip(parameters, noise, strict=True):
            parameter.data += change
        result = engine.forward_backward(policy, groups(make), loss)
        found.append((result, engine._policies[policy].gradients()))
    (shared, shared_gradients), (plain, plain_gradients) = found
    for one, other in zip(shared.logprobs, plain.logprobs, strict=True):
        assert one == pytest.approx(other, abs=5e-6)
    assert shared.loss == pytest.approx(plain.loss, rel=1e-5)
    for name, gradient in plain_gradients.items():
        torch.testing.assert_close(shared_gradients[name], gradient, rtol=1e-3, atol=1e-4)


def test_a_group_takes_fewer_positions_than_its_rows(make):
    datums = [make.rl([5] * 13, [6 + number, 7], 1.0) for number in range(8)]
    examples = examples_of(datums)
    count = [sum(map(len, packed_blocks(trees, 2048))) for trees in (grow(examples, 2048, 64), chains(examples))]
    assert count == [13 + 8, 14 * 8]


@pytest.mark.parametrize(
    "change",
    [{"sliding_window": 4}, {"layer_types": ["full_attention", "sliding_attention"]}, {"model_type": "mamba"}],
)
def test_models_whose_attention_does_not_allow_it_take_the_plain_path(change, monkeypatch):
    config = load_base("tiny-llama").config
    assert can_pack(config)
    for name, value in change.items():
        monkeypatch.setattr(config, name, value, raising=False)
    assert not can_pack(config)
