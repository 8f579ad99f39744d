import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tinker_actors.data import Datum, ImageChunk, ModelInput, TextChunk
from tinker_actors.errors import DataError
from tinker_actors.training import LossConfig
from tinker_actors.training.batching import Targets, check_batch, examples_of, padded, plain_batches, split

PPO, SFT = LossConfig(name="ppo"), LossConfig(name="cross_entropy")


def supervised(tokens, weights):
    return Datum(model_input=ModelInput.of(tokens[:-1]), targets=tuple(tokens[1:]), weights=tuple(weights))


def test_attention_comes_from_lengths_where_eos_is_pad():
    # Rows [5,6,9,9] of length 3 and [1,2,3,4] of length 4, with 9 as end and pad: the sampled 9 is attended to.
    examples = examples_of([supervised([5, 6, 9, 2], [1, 1, 1]), supervised([1, 2, 3, 4, 5], [1, 1, 1, 1])])
    batch = padded(examples)
    assert batch.attention.tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert batch.tokens_BL[0, :3].tolist() == [5, 6, 9]
    assert batch.positions_BL[0].tolist() == [0, 1, 2, 3]


def test_only_trained_targets_are_scored_each_at_the_position_before_it(make):
    datum = make.rl([1, 2, 3], [4, 5])
    batch = padded(examples_of([datum]))
    assert batch.targets_N.tolist() == [4, 5]
    assert batch.columns_N.tolist() == [2, 3]
    assert batch.slots_N.tolist() == [2, 3]


def test_a_mask_and_not_a_value_says_what_is_trained(make):
    datum = make.rl([1, 2], [3], advantage=0.0)
    assert Targets.of([datum]).trained_T.tolist() == [False, True]


def test_supervised_targets_of_weight_zero_are_not_trained_unless_all_are_asked_for():
    datum = supervised([1, 2, 3, 4], [0.0, 2.0, 0.0])
    assert [example.scored for example in examples_of([datum])] == [(1,)]
    assert [example.tokens for example in examples_of([datum])] == [(1, 2)]
    assert [example.scored for example in examples_of([datum], every_target=True)] == [(0, 1, 2)]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 120))
def test_a_split_holds_every_row_once_within_the_budget(lengths, budget):
    batches = split(lengths, budget)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[index] for index in batch) <= budget


def test_like_lengths_go_together():
    assert split([10, 1, 10, 1], 20) == [[0, 2], [1, 3]]


def test_slots_of_all_micro_batches_cover_the_trained_targets_once(make):
    datums = make.batch(9, seed=4)
    batches = plain_batches(examples_of(datums), 16)
    assert len(batches) > 2
    slots = torch.cat([batch.slots_N for batch in batches]).sort().values
    assert slots.tolist() == Targets.of(datums).trained_T.nonzero()[:, 0].tolist()


def image_datum():
    image = ImageChunk(data=b"png", format="png", token_count=2, placeholder=1)
    chunks = (TextChunk(tokens=(5,)), image, TextChunk(tokens=(6,)))
    return Datum(model_input=ModelInput(chunks=chunks), targets=(1, 1, 6, 7), weights=(0, 0, 0, 1))


@pytest.mark.parametrize(
    ("datums", "loss", "message"),
    [
        ([], PPO, "no datums"),
        ([supervised([1, 2], [1])], PPO, "datum 0 .*weights, but the loss ppo needs mask"),
        ([image_datum()], SFT, "datum 0 .*image; the base model reads none"),
        ([supervised([1, 2], [1]), supervised([1, 99], [1])], SFT, "datum 1 .*token 99.*below 50"),
        ([supervised([99, 1], [1])], SFT, "token 99"),
        ([supervised(list(range(1, 12)), [1] * 10)], SFT, "10 positions; the model's context has 8"),
    ],
)
def test_a_batch_that_cannot_be_trained_on_is_refused_by_name(datums, loss, message):
    with pytest.raises(DataError, match=message):
        check_batch(datums, loss, vocabulary=50, context_length=8)


def test_rl_datums_are_refused_by_a_supervised_loss(make):
    with pytest.raises(DataError, match="mask and advantages, but the loss cross_entropy needs weights"):
        check_batch([make.rl([1], [2])], SFT, vocabulary=50, context_length=8)
