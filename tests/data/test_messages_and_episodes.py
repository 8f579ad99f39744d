"""Tool results, turns, episodes and groups."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinker_actors.data import (
    Episode,
    EpisodeEnd,
    Group,
    ImageChunk,
    Message,
    ModelInput,
    Task,
    TextChunk,
    ToolCall,
    Trajectory,
    Turn,
    TurnEnd,
    concatenate,
    derive_seed,
    tool_results,
)
from tinker_actors.errors import DataError

CALLS = tuple(ToolCall(id=f"c{number}", name="look", arguments="{}") for number in (1, 2, 3))


def test_tool_results_stand_once_each_in_call_order():
    messages = tool_results(CALLS, {"c3": "t3", "c1": "t1", "c2": "t2"})
    assert [(message.role, message.tool_call_id, message.content) for message in messages] == [
        ("tool", "c1", "t1"),
        ("tool", "c2", "t2"),
        ("tool", "c3", "t3"),
    ]


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ({"c1": "a", "c2": "b"}, r"\['c3'\] have no result"),
        ({"c1": "a", "c2": "b", "c3": "c", "c4": "d"}, r"\['c4'\] answer no call"),
    ],
)
def test_tool_results_that_do_not_match_the_calls_are_refused(results: dict[str, str], message: str):
    with pytest.raises(DataError, match=message):
        tool_results(CALLS, results)


def test_an_unknown_role_is_refused_by_name():
    with pytest.raises(DataError, match="role is 'boss'"):
        Message(role="boss", content="")  # type: ignore[arg-type]


def test_a_turn_needs_one_finite_logprob_per_token():
    with pytest.raises(DataError, match="2 entries for 1 action tokens"):
        Turn(observation=ModelInput.of([1]), action=(2,), logprobs=(-0.1, -0.2), end=TurnEnd.STOP)
    with pytest.raises(DataError, match=r"logprobs\[0\] is nan"):
        Turn(observation=ModelInput.of([1]), action=(2,), logprobs=(float("nan"),), end=TurnEnd.STOP)


def episode(name: str, end: EpisodeEnd, *, trainable: bool = True) -> Episode:
    turns = (Turn(observation=ModelInput.of([1]), action=(2,), logprobs=(-0.1,), end=TurnEnd.STOP, reward=1.0),)
    seats = (
        Trajectory(seat="a", policy="p", turns=turns, end=end),
        Trajectory(seat="b", policy="q", turns=turns, end=end, trainable=trainable),
    )
    error = "step raised" if end.is_error else None
    return Episode(id=name, task=Task(environment="e", seed=1), end=end, trajectories=seats, error=error)


def test_estimators_see_only_valid_episodes_and_trainable_seats():
    episodes = (
        episode("1", EpisodeEnd.TERMINATED, trainable=False),
        episode("2", EpisodeEnd.FAILED),
        episode("3", EpisodeEnd.TRUNCATED, trainable=False),
    )
    group = Group(task=Task(environment="e", seed=1), episodes=episodes)
    assert [entry.id for entry in group.failed] == ["2"]
    assert len(group.trajectories("a")) == 2
    assert group.trainable_seats == ("a",)


def test_a_failed_episode_names_its_error_and_a_group_holds_one_task():
    with pytest.raises(DataError, match="those that failed or were forfeited have one"):
        Episode(id="1", task=Task(environment="e", seed=1), end=EpisodeEnd.FAILED, trajectories=())
    with pytest.raises(DataError, match="are not of task"):
        Group(task=Task(environment="e", seed=2), episodes=(episode("1", EpisodeEnd.TERMINATED),))


def test_a_negative_token_and_an_empty_image_are_refused():
    with pytest.raises(DataError, match="token 1 of a text chunk is -3"):
        ModelInput.of([1, -3])
    with pytest.raises(DataError, match="token_count of an image is 0"):
        ImageChunk(data=b"", format="png", token_count=0, placeholder=1)


chunks = st.one_of(
    st.lists(st.integers(0, 9), min_size=1, max_size=3).map(lambda ids: TextChunk(tokens=tuple(ids))),
    st.integers(1, 4).map(lambda count: ImageChunk(data=b"x", format="png", token_count=count, placeholder=7)),
)
inputs = st.lists(chunks, max_size=3).map(lambda parts: ModelInput(chunks=tuple(parts)))


@given(st.lists(inputs, max_size=4))
def test_joining_inputs_keeps_every_position_in_order(parts: list[ModelInput]):
    whole = concatenate(parts)
    assert whole.tokens == tuple(token for part in parts for token in part.tokens)
    assert len(whole) == len(whole.tokens)
    kinds = [isinstance(chunk, TextChunk) for chunk in whole.chunks]
    assert not any(left and right for left, right in pairwise(kinds))


@given(
    st.lists(st.one_of(st.integers(), st.text()), max_size=3), st.lists(st.one_of(st.integers(), st.text()), max_size=3)
)
def test_seeds_differ_when_any_part_differs(left: list[int | str], right: list[int | str]):
    same = [(type(part), part) for part in left] == [(type(part), part) for part in right]
    assert (derive_seed(*left) == derive_seed(*right)) == same
    assert 0 <= derive_seed(*left) < 2**63
