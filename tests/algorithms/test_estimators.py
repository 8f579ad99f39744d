"""Advantages of groups, their batches and aggregations against values worked out by hand."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinker_actors.algorithms import (
    GROUP_ESTIMATORS,
    AdvantageConfig,
    AdvantageName,
    Estimator,
    demonstration_datums,
    estimator,
    factors,
    policy_batches,
)
from tinker_actors.data import Episode, EpisodeEnd, Group, ModelInput, Task, Trajectory, Turn, TurnEnd
from tinker_actors.errors import AlgorithmError
from tinker_actors.rollouts import rewards_vary


def of_group(name: str, rewards: Sequence[float]) -> list[float]:
    return GROUP_ESTIMATORS[name](rewards)


def named(name: AdvantageName) -> Estimator:
    return estimator(AdvantageConfig(name=name))


def test_rewards_of_one_task_are_centred_on_their_own_mean():  # L9
    assert of_group("grpo_no_std", [1, 0, 1, 0]) == [0.5, -0.5, 0.5, -0.5]
    assert of_group("dr_grpo", [1, 0, 1, 0]) == [0.5, -0.5, 0.5, -0.5]
    assert of_group("grpo", [1, 0, 1, 0]) == [1.0, -1.0, 1.0, -1.0]
    assert of_group("rloo", [1, 0, 1, 0]) == pytest.approx([2 / 3, -2 / 3, 2 / 3, -2 / 3])
    assert of_group("leave_one_out", [1, 0, 1, 0]) == pytest.approx([4 / 3, -4 / 3, 4 / 3, -4 / 3])
    assert of_group("max_rl", [1, 0, 1, 0]) == [1.0, -1.0, 1.0, -1.0]
    assert of_group("max_rl", [1, 0, 0, 0]) == [3.0, -1.0, -1.0, -1.0]


@pytest.mark.parametrize("name", GROUP_ESTIMATORS)
@pytest.mark.parametrize("rewards", [[1, 1, 1, 1], [0.1] * 7, [0.1 + 0.2] * 3, [0.0, 0.0], [0.1 + 0.2, 0.3]])
def test_equal_rewards_give_exactly_zero(name: str, rewards: list[float]):  # L8
    assert of_group(name, rewards) == [0.0] * len(rewards)


@pytest.mark.parametrize("name", [name for name in GROUP_ESTIMATORS if name not in ("rloo", "leave_one_out")])
def test_a_group_of_one_gives_exactly_zero(name: str):  # L8
    assert of_group(name, [3.0]) == [0.0]


@pytest.mark.parametrize("name", ["rloo", "leave_one_out"])
def test_leaving_one_out_of_one_is_refused(name: str):  # L8
    with pytest.raises(AlgorithmError, match=f"{name} got a group of 1"):
        of_group(name, [1.0])


def test_rewards_that_no_estimator_can_take_are_refused():
    with pytest.raises(AlgorithmError, match="reward 1 of a group is nan"):
        of_group("grpo", [1.0, math.nan])
    with pytest.raises(AlgorithmError, match="max_rl got a reward of -1"):
        of_group("max_rl", [1.0, -1.0])


REWARDS = st.lists(st.floats(0, 100), min_size=2, max_size=12)


@given(REWARDS)
def test_leave_one_out_equals_its_definition(rewards: list[float]):
    expected = [reward - (math.fsum(rewards) - reward) / (len(rewards) - 1) for reward in rewards]
    assert of_group("rloo", rewards) == pytest.approx(expected, abs=1e-9)
    if (deviation := statistics.pstdev(rewards)) > 1e-6:
        scaled = [value / deviation for value in expected]
        assert of_group("leave_one_out", rewards) == pytest.approx(scaled, rel=1e-6, abs=1e-6)
        assert of_group("grpo", rewards) == pytest.approx(
            [(reward - statistics.fmean(rewards)) / deviation for reward in rewards], rel=1e-6, abs=1e-6
        )


@given(REWARDS)
def test_advantages_are_finite_and_sum_to_zero(rewards: list[float]):
    for estimate in GROUP_ESTIMATORS.values():
        values = estimate(rewards)
        assert all(math.isfinite(value) for value in values)
        assert math.fsum(values) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("failures", range(1, 6))
def test_max_rl_averages_to_the_truncated_gradient_of_the_log_likelihood(failures: int):
    count, chance = 6, failures / 6
    total = 0.0
    for wins in itertools.product([1.0, 0.0], repeat=count):
        likelihood = math.prod(chance if win else 1 - chance for win in wins)
        # the score of a Bernoulli in p
        scores = [1 / chance if win else -1 / (1 - chance) for win in wins]
        terms = zip(of_group("max_rl", wins), scores, strict=True)
        total += likelihood * math.fsum(value * score for value, score in terms) / count
    # log p has the gradient 1 / p, the sum over k of (1 - p)^k, of which n samples reach n - 1 terms
    assert total == pytest.approx(math.fsum((1 - chance) ** k for k in range(count - 1)))


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
    batches = policy_batches([one, two], named("grpo_no_std"), "token_sum")
    assert advantages(batches["policy-x"].datums) == [0.5, -0.5, 1.0, -1.0]
    assert advantages(batches["policy-o"].datums) == [-0.5, 0.5]
    assert (batches["policy-o"].groups, batches["policy-o"].flat_groups) == (2, 1)


def test_a_failed_episode_leaves_a_smaller_group():
    members = [episode(str(number), {"x": reward}) for number, reward in enumerate([1, 0, 0])]
    batches = policy_batches([group(*members, episode("9", {"x": 0}, failed=True))], named("grpo_no_std"), "token_sum")
    assert advantages(batches["policy-x"].datums) == pytest.approx([2 / 3, -1 / 3, -1 / 3])
    assert (batches["policy-x"].trajectories, batches["policy-x"].left_out) == (3, 1)


@pytest.mark.parametrize("name", ["rloo", "leave_one_out", "pass_at_k"])
def test_a_group_that_failures_leave_too_small_gives_no_signal(name: AdvantageName):
    lost = [episode(str(number), {"x": 0}, failed=True) for number in range(3)]
    (batch,) = policy_batches([group(episode("9", {"x": 1}), *lost)], named(name), "token_sum").values()
    assert (batch.datums, batch.trajectories, batch.left_out) == ((), 1, 3)
    with pytest.raises(AlgorithmError, match="group of 1"):
        policy_batches([group(episode("9", {"x": 1}))], named(name), "token_sum")


def idle(entry: Episode, seat: str, windfall: float = 0.0) -> Episode:
    """The episode as if a seat had never come to act."""
    found = [replace(own, turns=(), windfall=windfall) if own.seat == seat else own for own in entry.trajectories]
    return replace(entry, trajectories=tuple(found))


@pytest.mark.parametrize("windfall", [0.0, 1.0])
def test_episodes_in_which_a_seat_never_came_to_act_are_no_measure_for_its_actions(windfall: float):
    played = [episode("1", {"x": 0, "o": 0.5}), episode("2", {"x": 0, "o": 0.5})]
    unplayed = idle(episode("3", {"x": -1, "o": 0}), "o", windfall)
    batches = policy_batches([group(*played, unplayed)], named("grpo"), "token_sum")
    assert batches["policy-o"].datums == ()
    assert (batches["policy-o"].flat_groups, batches["policy-o"].left_out) == (1, 1)
    assert advantages(batches["policy-x"].datums) == pytest.approx([0.5**0.5, 0.5**0.5, -(2**0.5)])
    assert not rewards_vary(group(*(replace(own, trajectories=own.trajectories[1:]) for own in (*played, unplayed))))
    assert "policy-o" in policy_batches([group(played[0], unplayed)], named("rloo"), "token_sum")
    assert "policy-o" not in policy_batches([group(unplayed)], named("grpo"), "token_sum")


def test_a_first_prompt_that_overflowed_is_no_measure_for_what_others_sampled():
    played = [episode("1", {"x": 1}), episode("2", {"x": 1})]
    (silent,) = episode("3", {"x": 100}).trajectories
    overflowed = replace(silent.turns[0], action=(), logprobs=(), end=TurnEnd.CONTEXT_OVERFLOW)
    unsaid = replace(episode("3", {"x": 100}), trajectories=(replace(silent, turns=(overflowed,)),))
    (batch,) = policy_batches([group(*played, unsaid)], named("grpo_no_std"), "token_sum").values()
    assert (batch.datums, batch.trajectories, batch.left_out, batch.flat_groups) == ((), 2, 1, 1)
    assert not rewards_vary(group(*played, unsaid))


def test_frozen_seats_are_neither_trained_nor_counted():
    batches = policy_batches(
        [group(episode("1", {"x": 1, "o": -1}, frozen="o"), episode("2", {"x": 0, "o": 0}, frozen="o"))],
        named("grpo"),
        "token_sum",
    )
    assert set(batches) == {"policy-x"}
    assert batches["policy-x"].action_tokens == 4


def test_token_mean_counts_tokens_of_trajectories_without_signal():
    flat = group(episode("1", {"x": 1}), episode("2", {"x": 1}))
    signal = group(episode("3", {"x": 1}, seed=1), episode("4", {"x": 0}, seed=1))
    batches = policy_batches([flat, signal], named("grpo_no_std"), "token_mean")
    assert advantages(batches["policy-x"].datums) == pytest.approx([0.5 / 8, -0.5 / 8])


def test_demonstrations_are_weighted_to_a_mean_over_their_action_tokens():
    datums = demonstration_datums([group(episode("1", {"x": 0}), episode("2", {"x": 0}))])
    assert [datum.weights for datum in datums] == [(0.25, 0.25), (0.25, 0.25)]
