"""Advantages and aggregations against values worked out by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinker_actors.algorithms import ESTIMATORS, demonstration_datums, estimator, factors, policy_batches
from tinker_actors.data import Episode, EpisodeEnd, Group, ModelInput, Task, Trajectory, Turn, TurnEnd
from tinker_actors.errors import AlgorithmError


def test_rewards_of_one_task_are_centred_on_their_own_mean():
    assert estimator("grpo_no_std")([1, 0, 1, 0]) == [0.5, -0.5, 0.5, -0.5]
    assert estimator("dr_grpo")([1, 0, 1, 0]) == [0.5, -0.5, 0.5, -0.5]
    assert estimator("grpo")([1, 0, 1, 0]) == [1.0, -1.0, 1.0, -1.0]
    assert estimator("rloo")([1, 0, 1, 0]) == pytest.approx([2 / 3, -2 / 3, 2 / 3, -2 / 3])


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("rewards", [[1, 1, 1, 1], [0.1] * 7, [0.1 + 0.2] * 3])
def test_equal_rewards_give_exactly_zero(name: str, rewards: list[float]):
    assert estimator(name)(rewards) == [0.0] * len(rewards)


@pytest.mark.parametrize("name", [name for name in ESTIMATORS if name != "rloo"])
def test_a_group_of_one_gives_exactly_zero(name: str):
    assert estimator(name)([3.0]) == [0.0]


def test_leaving_one_out_of_one_is_refused():
    with pytest.raises(AlgorithmError, match="group of 1"):
        estimator("rloo")([1.0])


def test_unknown_names_and_rewards_that_are_not_finite_are_refused():
    with pytest.raises(AlgorithmError, match="'gppo'"):
        estimator("gppo")
    with pytest.raises(AlgorithmError, match="reward 1 of a group is nan"):
        estimator("grpo")([1.0, math.nan])


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=12))
def test_leave_one_out_equals_its_definition(rewards: list[float]):
    expected = [reward - (math.fsum(rewards) - reward) / (len(rewards) - 1) for reward in rewards]
    assert estimator("rloo")(rewards) == pytest.approx(expected, abs=1e-9)


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=12))
def test_advantages_are_finite_and_sum_to_zero(rewards: list[float]):
    for estimate in ESTIMATORS.values():
        values = estimate(rewards)
        assert all(math.isfinite(value) for value in values)
        assert math.fsum(values) == pytest.approx(0, abs=1e-6)


def test_aggregations_follow_their_table():
    lengths = [1, 3]
    assert factors("token_sum", lengths) == [1.0, 1.0]
    assert factors("token_mean", lengths) == [0.25, 0.25]
    assert factors("sequence_mean", lengths) == pytest.approx([0.5, 1 / 6])
    assert factors("constant", lengths, constant=10) == [0.05, 0.05]
    with pytest.raises(AlgorithmError, match="constant is None"):
        factors("constant", lengths)


def episode(name: str, rewards: dict[str, float], seed: int = 0, *, failed: bool = False, frozen: str = "") -> Episode:
    end = EpisodeEnd.FAILED if failed else EpisodeEnd.TERMINATED
    trajectories = tuple(
        Trajectory(
            seat=seat,
            policy=f"policy-{seat}",
            turns=(
                Turn(
                    observation=ModelInput.of([1]),
                    action=(2, 3),
                    logprobs=(-0.1, -0.2),
                    end=TurnEnd.STOP,
                    reward=reward,
                ),
            ),
            end=end,
            trainable=seat != frozen,
        )
        for seat, reward in rewards.items()
    )
    error = "grader raised" if failed else None
    return Episode(id=name, task=Task(environment="e", seed=seed), end=end, trajectories=trajectories, error=error)


def group(*episodes: Episode) -> Group:
    return Group(task=episodes[0].task, episodes=episodes)


def advantages(datums: object) -> list[float]:
    return [datum.advantages[-1] * datum.scale for datum in datums]  # type: ignore[attr-defined]


def test_groups_are_keyed_by_task_and_seat():
    one = group(episode("1", {"x": 1, "o": -1}), episode("2", {"x": 0, "o": 0}))
    two = group(episode("3", {"x": 5, "o": 2}, seed=1), episode("4", {"x": 3, "o": 2}, seed=1))
    batches = policy_batches([one, two], estimator("grpo_no_std"), "token_sum")
    assert advantages(batches["policy-x"].datums) == [0.5, -0.5, 1.0, -1.0]
    assert advantages(batches["policy-o"].datums) == [-0.5, 0.5]
    assert (batches["policy-o"].groups, batches["policy-o"].flat_groups) == (2, 1)


def test_a_failed_episode_leaves_a_smaller_group():
    members = [episode(str(number), {"x": reward}) for number, reward in enumerate([1, 0, 0])]
    batches = policy_batches(
        [group(*members, episode("9", {"x": 0}, failed=True))], estimator("grpo_no_std"), "token_sum"
    )
    assert advantages(batches["policy-x"].datums) == pytest.approx([2 / 3, -1 / 3, -1 / 3])
    assert batches["policy-x"].trajectories == 3


def test_frozen_seats_are_neither_trained_nor_counted():
    batches = policy_batches(
        [group(episode("1", {"x": 1, "o": -1}, frozen="o"), episode("2", {"x": 0, "o": 0}, frozen="o"))],
        estimator("grpo"),
        "token_sum",
    )
    assert set(batches) == {"policy-x"}
    assert batches["policy-x"].action_tokens == 4


def test_token_mean_counts_tokens_of_trajectories_without_signal():
    flat = group(episode("1", {"x": 1}), episode("2", {"x": 1}))
    signal = group(episode("3", {"x": 1}, seed=1), episode("4", {"x": 0}, seed=1))
    batches = policy_batches([flat, signal], estimator("grpo_no_std"), "token_mean")
    assert advantages(batches["policy-x"].datums) == pytest.approx([0.5 / 8, -0.5 / 8])


def test_demonstrations_are_weighted_to_a_mean_over_their_action_tokens():
    datums = demonstration_datums([group(episode("1", {"x": 0}), episode("2", {"x": 0}))])
    assert [datum.weights for datum in datums] == [(0.25, 0.25), (0.25, 0.25)]
