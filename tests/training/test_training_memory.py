"""What passes keep: hidden states rather than logits, and with checkpointing what enters each layer only."""

import pytest
import torch
from torch import nn
from transformers.models.llama.modeling_llama import LlamaMLP

from tinker_actors.data import rl_datums
from tinker_actors.training import LossConfig
from tinker_actors.training import head as heads
from tinker_actors.training.batching import examples_of
from tinker_actors.training.head import head_scores
from tinker_actors.training.packing import chains, packed_blocks
from tinker_actors.training.sharing import grow

WIDTH, VOCABULARY = 6, 11


def scored(head, hidden, entropy_gradient=True):
    """Seven distributions, some with two targets, at unlike temperatures."""
    distributions = torch.tensor([0, 0, 1, 2, 3, 3, 4, 5, 6])
    targets = torch.tensor([1, 2, 3, 0, 10, 10, 5, 6, 7])
    temperatures = torch.tensor([1.0, 0.5, 2.0, 1.0, 0.7, 1.0, 1.0])
    found = head_scores(head, hidden, temperatures, distributions, targets, entropy_gradient=entropy_gradient)
    all_rows = torch.log_softmax(head(hidden).float() / temperatures[:, None], -1)
    expected = all_rows[distributions, targets], -(all_rows.exp() * all_rows).sum(-1)
    return found, expected


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("chunk", [2, 128])
def test_a_head_in_chunks_gives_the_whole_heads_scores_and_gradients(monkeypatch, trained, chunk):
    monkeypatch.setattr(heads, "CHUNK", chunk)
    torch.manual_seed(0)
    head = nn.Linear(WIDTH, VOCABULARY).requires_grad_(trained)
    hidden = torch.randn(7, WIDTH, requires_grad=True)
    weights = torch.randn(9), torch.randn(7)
    wanted = [hidden, *(head.parameters() if trained else ())]
    gradients = []
    found, expected = scored(head, hidden)
    for logprobs, entropies in (found, expected):
        loss = (logprobs * weights[0]).sum() + (entropies * weights[1]).sum()
        gradients.append(torch.autograd.grad(loss, wanted))
    for one, other in zip((*found, *gradients[0]), (*expected, *gradients[1]), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_entropies_have_no_gradient_unless_one_is_asked_for():
    head = nn.Linear(WIDTH, VOCABULARY).requires_grad_(False)
    (logprobs, entropies), _ = scored(head, torch.randn(7, WIDTH, requires_grad=True), entropy_gradient=False)
    assert (logprobs.requires_grad, entropies.requires_grad) == (True, False)


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_recomputed_activations_give_the_same_gradients_bit_for_bit(engine, make, monkeypatch, kind):
    calls = []
    original = LlamaMLP.forward
    monkeypatch.setattr(LlamaMLP, "forward", lambda module, x: calls.append(1) or original(module, x))
    found, counts = [], []
    for remember in (False, True):
        policy = engine.create(make.spec(kind=kind))
        loss = LossConfig(name="ppo", gradient_checkpointing=remember)
        result = engine.forward_backward(policy, make.batch(5), loss)
        found.append((result, engine._policies[policy].gradients()))
        counts.append(len(calls))
        calls.clear()
    assert counts[1] == 2 * counts[0]
    assert found[0][0] == found[1][0]
    assert all(torch.equal(found[1][1][name], value) for name, value in found[0][1].items())


def test_a_multi_turn_groups_common_turns_are_computed_once(engine, make):
    first, second = ([5, 6], [7, 8], None), ([5, 6, 7, 8, 9, 10], [11, 12], None)
    shared = [make.trajectory(first, second, ([5, 6, 7, 8, 9, 10, 11, 12, 13], [14 + n], None)) for n in range(4)]
    datums = [datum for trajectory in shared for datum in rl_datums(trajectory, 1.0)]
    examples = examples_of(datums)
    tokens = [sum(map(len, packed_blocks(trees, 1024))) for trees in (grow(examples, 1024, 64), chains(examples))]
    assert tokens == [9, 36]  # nine prefixes in all; the last answers are targets only
    policy = engine.create(make.spec())
    found = [engine.forward(policy, datums, LossConfig(name="ppo", share_prompts=share)) for share in (True, False)]
    for one, other in zip(found[0].logprobs, found[1].logprobs, strict=True):
        assert one == pytest.approx(other, abs=5e-6)
