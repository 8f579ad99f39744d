import math

import numpy as np
import pytest
import torch

from tinker_actors.sampling.requests import SamplingParams
from tinker_actors.sampling.selection import Selector, row_keys, truncated, uniforms


def select(logits, params, *, seeds=None, position=0):
    logits = torch.as_tensor(logits, dtype=torch.float32)
    seeds = seeds or range(len(params))
    drawn = Selector.of(params, row_keys(list(seeds), [0] * len(params))).select(logits, position)
    return torch.tensor(drawn.tokens), torch.tensor(drawn.logprobs)


def test_logprob_is_under_the_tempered_distribution():  # L1
    logits = torch.tensor([[2.0, 0.0]]).expand(256, 2)
    tokens, logprobs = select(logits, [SamplingParams(temperature=2.0)] * 256)
    assert set(tokens.tolist()) == {0, 1}
    first = logprobs[tokens == 0][0].item()
    assert first == pytest.approx(-0.313262, abs=1e-6)


def test_top_k_renormalises_the_behaviour():  # L3
    logits = torch.tensor([[0.5, 0.3, 0.2]]).log().expand(512, 3)
    tokens, logprobs = select(logits, [SamplingParams(top_k=2)] * 512)
    assert set(tokens.tolist()) == {0, 1}
    seen = {token: math.exp(logprob) for token, logprob in zip(tokens.tolist(), logprobs.tolist(), strict=True)}
    assert seen[0] == pytest.approx(0.625, abs=1e-6)
    assert seen[1] == pytest.approx(0.375, abs=1e-6)


@pytest.mark.parametrize(("top_p", "kept"), [(0.5, 1), (0.51, 2), (0.8, 2), (0.81, 3), (1e-9, 1), (1.0, 3)])
def test_nucleus_is_the_smallest_set_that_reaches_the_mass(top_p, kept):
    logits = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).log()
    cut = truncated(logits, 3, top_p)
    assert int(torch.isfinite(cut).sum()) == kept
    assert torch.isfinite(cut[1])


def test_top_p_counts_mass_among_what_top_k_left():
    logits = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log()
    cut = truncated(logits, 2, 0.62)
    assert torch.isfinite(cut).tolist() == [True, False, False]  # .5 / .8 = .625 reaches .62


def test_ties_at_the_kth_place_keep_exactly_k_lower_ids_first():
    cut = truncated(torch.zeros(4), 2, 1.0)
    assert torch.isfinite(cut).tolist() == [True, True, False, False]


def test_greedy_takes_the_most_likely_token_with_its_logprob_at_temperature_one():
    tokens, logprobs = select([[2.0, 0.0], [0.0, 1.0]], [SamplingParams(temperature=0, top_k=1)] * 2)
    assert tokens.tolist() == [0, 1]
    assert logprobs[0].item() == pytest.approx(-math.log1p(math.exp(-2)), abs=1e-6)


def test_rows_of_one_batch_keep_their_own_parameters():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 11, generator=generator)
    params = [
        SamplingParams(temperature=0),
        SamplingParams(temperature=0.7),
        SamplingParams(top_k=3),
        SamplingParams(temperature=1.3, top_p=0.6),
        SamplingParams(),
    ]
    tokens, logprobs = select(logits, params, seeds=range(5))
    for row, entry in enumerate(params):
        alone, logprob = select(logits[row : row + 1], [entry], seeds=[row])
        assert alone.item() == tokens[row].item()
        assert logprob.item() == pytest.approx(logprobs[row].item(), abs=1e-7)


def test_draws_follow_the_distribution():
    probs = torch.tensor([0.1, 0.0, 0.6, 0.3])
    count = 20_000
    tokens, _ = select(probs.log().expand(count, 4), [SamplingParams()] * count)
    seen = torch.bincount(tokens, minlength=4) / count
    assert seen[1] == 0
    assert torch.allclose(seen, probs, atol=0.015)


def test_uniforms_depend_on_seed_sample_and_position_only():
    keys = row_keys([7, 7, 8, 7], [0, 1, 0, 0])
    drawn = np.stack([uniforms(keys, position) for position in range(64)])
    assert (drawn[:, 0] == drawn[:, 3]).all()
    assert not (drawn[:, 0] == drawn[:, 1]).any()
    assert not (drawn[:, 0] == drawn[:, 2]).any()
    assert len(np.unique(drawn[:, :3])) == 3 * 64
    assert (uniforms(keys[1:2], 5) == drawn[5, 1]).all()


def test_neighbouring_seeds_and_samples_are_uncorrelated():
    seeds, samples = np.meshgrid(np.arange(100), np.arange(100))
    keys = row_keys(seeds.ravel().tolist(), samples.ravel().tolist())
    drawn = uniforms(keys, 0)
    assert len(np.unique(drawn)) == 10_000
    assert abs(drawn.mean() - 0.5) < 0.01
    grid = drawn.reshape(100, 100)
    for shifted in (grid[1:], grid[:, 1:].T):
        other = grid[:-1] if shifted.shape == (99, 100) else grid[:, :-1].T
        assert abs(np.corrcoef(shifted.ravel(), other.ravel())[0, 1]) < 0.04


def test_the_extremes_of_the_uniform_never_leave_the_support(monkeypatch):
    logits = torch.tensor([[-torch.inf, 0.0, 0.0, -torch.inf]])
    for extreme, expected in ((0.0, 1), (1 - 2.0**-52, 2)):
        monkeypatch.setattr(
            "tinker_actors.sampling.selection.uniforms", lambda keys, _, value=extreme: np.full(len(keys), value)
        )
        tokens, logprobs = select(logits, [SamplingParams()])
        assert tokens.item() == expected
        assert logprobs.item() == pytest.approx(math.log(0.5), abs=1e-6)


def test_broken_logits_show_as_nan_logprobs_of_that_row_only():
    tokens, logprobs = select([[0.0, float("nan")], [0.0, 1.0]], [SamplingParams()] * 2)
    assert math.isnan(logprobs[0].item())
    assert math.isfinite(logprobs[1].item())
    assert 0 <= tokens[0].item() < 2


def test_min_p_keeps_tokens_by_their_share_of_the_most_likely_one():
    tokens, logprobs = select(torch.tensor([[0.5, 0.3, 0.2]]).log().expand(512, 3), [SamplingParams(min_p=0.5)] * 512)
    assert set(tokens.tolist()) == {0, 1}
    assert math.exp(logprobs[tokens == 0][0]) == pytest.approx(0.625, abs=1e-6)


def test_penalties_and_biases_change_the_logits_before_the_temperature():
    params = [
        SamplingParams(temperature=0, repetition_penalty=2.0, logprobs=4),
        SamplingParams(temperature=0, presence_penalty=1.0, frequency_penalty=0.5, logprobs=4),
        SamplingParams(temperature=0, logit_bias=((3, 5.0),), logprobs=4),
        SamplingParams(temperature=0),
    ]
    logits = torch.tensor([3.0, 2.5, -1.0, 0.0])
    given = [([0, 2], [0]), ([1], [0, 0]), ((), ()), ([0], [0])]
    drawn = Selector.of(params, row_keys([0] * 4, [0] * 4)).select(logits.expand(4, 4), 0, said=given)
    assert drawn.tokens == [1, 1, 3, 0]
    expected = [[1.5, 2.5, -2.0, 0.0], [1.0, 2.5, -1.0, 0.0], [3.0, 2.5, -1.0, 5.0]]
    for tops, changed in zip(drawn.tops, expected, strict=False):
        wanted = torch.tensor(changed).log_softmax(-1)
        assert dict(tops) == pytest.approx({token: wanted[token].item() for token in range(4)}, abs=1e-6)
    assert drawn.tops[3] == ()


def test_draws_over_a_vocabulary_of_many_blocks_follow_the_distribution():
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(1, 1000, generator=generator)
    count = 20_000
    tokens, logprobs = select(logits.expand(count, -1), [SamplingParams()] * count)
    probs = logits[0].softmax(-1)
    groups = torch.arange(1000) // 50
    seen = torch.zeros(20).index_add_(0, groups[tokens], torch.ones(count)) / count
    assert torch.allclose(seen, torch.zeros(20).index_add_(0, groups, probs), atol=0.015)
    assert torch.allclose(logprobs, logits[0].log_softmax(-1)[tokens], atol=1e-5)
