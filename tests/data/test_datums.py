"""The data contract: target coordinates, masks, and every sampled token trained exactly once."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinker_actors.data import (
    Datum,
    EpisodeEnd,
    ImageChunk,
    ModelInput,
    SamplingRecord,
    TextChunk,
    Trajectory,
    Turn,
    TurnEnd,
    rl_datums,
    sft_datums,
    turns_from_prompts,
)
from tinker_actors.errors import DataError


def record(**changes: object) -> SamplingRecord:
    fields: dict[str, object] = {
        "snapshot_min": "tinker://p/sampler_weights/0",
        "snapshot_max": "tinker://p/sampler_weights/0",
        "snapshot_step": 0,
        "temperature": 1.0,
    }
    return SamplingRecord(**(fields | changes))  # type: ignore[arg-type]


def turn(observation: list[int] | ModelInput, action: list[int], **changes: object) -> Turn:
    fields: dict[str, object] = {
        "observation": observation if isinstance(observation, ModelInput) else ModelInput.of(observation),
        "action": tuple(action),
        "logprobs": tuple(-0.1 * token for token in action),
        "end": TurnEnd.STOP,
    }
    return Turn(**(fields | changes))  # type: ignore[arg-type]


def trajectory(*turns: Turn) -> Trajectory:
    return Trajectory(seat="agent", policy="p", turns=turns, end=EpisodeEnd.TERMINATED)


def test_prompt_and_action_stand_shifted_in_target_coordinates():
    (datum,) = rl_datums(trajectory(turn([1, 2, 3], [4, 5])), 2.0)
    assert datum.model_input.tokens == (1, 2, 3, 4)
    assert datum.targets == (2, 3, 4, 5)
    assert datum.mask == (0, 0, 1, 1)
    assert datum.logprobs == pytest.approx((0, 0, -0.4, -0.5))
    assert datum.advantages == (0.0, 0.0, 2.0, 2.0)


def test_growing_prompts_make_one_datum_with_each_action_once():
    turns = turns_from_prompts([([1], [2], [-0.1]), ([1, 2, 3], [4], [-0.2]), ([1, 2, 3, 4, 5], [6], [-0.3])])
    (datum,) = rl_datums(trajectory(*turns), 1.0)
    assert (datum.model_input.tokens, datum.targets) == ((1, 2, 3, 4, 5), (2, 3, 4, 5, 6))
    assert datum.mask == (1, 0, 1, 0, 1)


def test_a_prompt_that_rewrites_history_starts_a_new_datum():
    turns = turns_from_prompts([([1], [2], [-0.1]), ([9, 3], [4], [-0.2])])
    first, second = rl_datums(trajectory(*turns), [1.0, 2.0])
    assert (first.targets, first.mask) == ((2,), (1,))
    assert (second.model_input.tokens, second.targets, second.advantages) == ((9, 3), (3, 4), (0.0, 2.0))


def test_one_advantage_reaches_every_sampled_token_of_every_row_and_no_other():
    turns = turns_from_prompts([([1], [2], [-0.1]), ([7, 8], [4, 5], [-0.2, -0.3]), ([6], [9], [-0.4])])
    datums = rl_datums(trajectory(*turns), 0.7)
    assert len(datums) == 3
    for datum in datums:
        assert datum.advantages == tuple(0.7 * bit for bit in datum.mask or ())


def test_an_advantage_of_zero_leaves_the_mask_alone():
    (datum,) = rl_datums(trajectory(turn([1], [2, 3])), 0.0)
    assert datum.mask == (1, 1)


def test_rl_without_logprobs_is_refused_with_seat_and_turn_but_sft_is_fine():
    silent = trajectory(turn([1], [2]), turn([3], [4], logprobs=None))
    with pytest.raises(DataError, match=r"seat 'agent', turn 1: logprobs missing"):
        rl_datums(silent, 1.0)
    (datum,) = sft_datums(silent, weight=0.5)
    assert datum.weights == (0.5, 0.0, 0.5)
    assert datum.mask is None


def test_truncated_sampling_is_refused_for_rl_rather_than_scored_wrongly():
    with pytest.raises(DataError, match=r"turn 0: sampled with top_p 1.0 and top_k 2"):
        rl_datums(trajectory(turn([1], [2], sampling=record(top_k=2))), 1.0)
    with pytest.raises(DataError, match=r"top_p 0.9"):
        rl_datums(trajectory(turn([1], [2], sampling=record(top_p=0.9))), 1.0)


def test_the_sampling_temperature_travels_with_the_datum():
    (datum,) = rl_datums(trajectory(turn([1], [2], sampling=record(temperature=2.0))), 1.0)
    assert datum.temperature == 2.0
    with pytest.raises(DataError, match=r"temperatures \[1.0, 2.0\] in one datum"):
        rl_datums(trajectory(turn([1], [2], sampling=record()), turn([3], [4], sampling=record(temperature=2.0))), 1.0)


def test_greedy_actions_can_not_be_trained_by_rl():
    with pytest.raises(DataError, match="temperature is 0"):
        rl_datums(trajectory(turn([1], [2], sampling=record(temperature=0.0))), 1.0)


def test_a_turn_that_sampled_nothing_leaves_no_trace_at_the_end():
    overflow = turn([8, 9], [], logprobs=(), end=TurnEnd.CONTEXT_OVERFLOW)
    (datum,) = rl_datums(trajectory(turn([1], [2]), overflow), 1.0)
    assert datum.targets == (2,)


def test_a_seat_that_never_came_to_act_has_no_datum():
    assert rl_datums(trajectory(), 1.0) == ()
    assert sft_datums(trajectory()) == ()


def test_image_positions_are_counted_once_and_masked():
    image = ImageChunk(data=b"png", format="png", token_count=4, placeholder=99)
    seen = ModelInput(chunks=(TextChunk(tokens=(1,)), image, TextChunk(tokens=(2,))))
    tool = ModelInput(chunks=(ImageChunk(data=b"png", format="png", token_count=6, placeholder=99),))
    (datum,) = rl_datums(trajectory(turn(seen, [5]), turn(tool, [6])), 1.0)
    assert len(datum.model_input) == 4 + 10 - 1
    assert [target for target, bit in zip(datum.targets, datum.mask or (), strict=True) if bit] == [5, 6]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mask": (0, 1, 1)}, r"mask has 3 entries for 2 targets"),
        ({"mask": (1, 1)}, r"mask marks 2 targets, but 1 tokens were sampled"),
        ({"mask": (0, 2)}, r"mask\[1\] is 2"),
        ({"advantages": (0.0, math.nan)}, r"advantages\[1\] is nan"),
        ({"logprobs": (0.0, -math.inf)}, r"logprobs\[1\] is -inf"),
        ({"logprobs": None}, r"logprobs missing"),
        ({"weights": (1.0, 1.0)}, r"mask and weights exclude each other"),
        ({"targets": ()}, r"targets is empty"),
        ({"model_input": ModelInput.of([1])}, r"model_input has 1 positions for 2 targets"),
        ({"temperature": 0.0}, r"temperature is 0.0"),
    ],
)
def test_a_datum_that_breaks_the_contract_is_refused_when_built(changes: dict[str, object], message: str):
    good: dict[str, object] = {
        "model_input": ModelInput.of([1, 2]),
        "targets": (2, 3),
        "mask": (0, 1),
        "logprobs": (0.0, -0.5),
        "advantages": (0.0, 1.0),
        "sampled_tokens": 1,
        "where": "seat 'x', turn 3",
    }
    Datum(**good)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"seat 'x', turn 3: .*" + message):
        Datum(**(good | changes))  # type: ignore[arg-type]


tokens = st.integers(min_value=0, max_value=50)
drawn_turns = st.builds(
    lambda observation, action, restarts: turn(observation, action, restarts=restarts),
    st.lists(tokens, min_size=1, max_size=4),
    st.lists(tokens, max_size=4),
    st.booleans(),
)


@given(st.lists(drawn_turns, min_size=1, max_size=6), st.data())
def test_every_sampled_token_is_trained_exactly_once_with_its_own_logprob(turns: list[Turn], data: st.DataObject):
    advantages = data.draw(st.lists(st.floats(-3, 3), min_size=len(turns), max_size=len(turns)))
    trained: list[tuple[int, float, float]] = []
    for datum in rl_datums(trajectory(*turns), advantages, scale=0.5):
        assert datum.scale == 0.5
        assert len(datum.model_input) == len(datum.targets)
        assert datum.model_input.tokens[1:] == datum.targets[:-1]
        assert datum.mask is not None
        assert datum.logprobs is not None
        assert datum.advantages is not None
        rows = zip(datum.targets, datum.mask, datum.logprobs, datum.advantages, strict=True)
        for target, bit, logprob, advantage in rows:
            if bit:
                trained.append((target, logprob, advantage))
            else:
                assert (logprob, advantage) == (0.0, 0.0)
    sampled = [
        (token, logprob, advantage)
        for entry, advantage in zip(turns, advantages, strict=True)
        for token, logprob in zip(entry.action, entry.logprobs or (), strict=True)
    ]
    assert trained == sampled


@given(st.lists(drawn_turns, min_size=1, max_size=6))
def test_supervised_weights_mark_the_same_tokens_as_the_rl_mask(turns: list[Turn]):
    rl, sft = rl_datums(trajectory(*turns), 1.0), sft_datums(trajectory(*turns))
    assert [datum.targets for datum in rl] == [datum.targets for datum in sft]
    assert [tuple(float(bit) for bit in datum.mask or ()) for datum in rl] == [datum.weights for datum in sft]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"topk_weights": None}, r"topk_weights missing"),
        ({"topk_targets": None}, r"topk_targets missing"),
        ({"topk_targets": ((3, 4),)}, r"topk_targets has 1 rows for 2 targets"),
        ({"topk_weights": ((0.5,), (1.0,))}, r"topk_weights\[0\] has 1 entries for 2 targets"),
        ({"topk_weights": ((0.5, math.inf), (1.0,))}, r"topk_weights\[0\]\[1\] is inf"),
        ({"topk_targets": ((3, 3), (4,))}, r"topk_targets\[0\] is \(3, 3\)"),
        ({"weights": (1.0, 1.0)}, r"topk_targets and weights exclude each other"),
        ({"mask": (0, 1)}, r"mask and topk_targets exclude each other"),
        ({"scale": -1.0}, r"scale is -1.0"),
    ],
)
def test_candidates_that_break_the_contract_are_refused_when_built(changes: dict[str, object], message: str):
    good: dict[str, object] = {
        "model_input": ModelInput.of([1, 2]),
        "targets": (2, 3),
        "topk_targets": ((3, 4), (4,)),
        "topk_weights": ((0.5, 0.25), (1.0,)),
        "where": "line 7",
    }
    datum = Datum(**good)  # type: ignore[arg-type]
    assert (datum.is_rl, datum.scores) == (False, 3)
    with pytest.raises(DataError, match=r"line 7: .*" + message):
        Datum(**(good | changes))  # type: ignore[arg-type]
