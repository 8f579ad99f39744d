"""Estimators that look beyond one group's rewards: at the batch, at sets of samples, at turns, at earlier steps."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinker_actors.algorithms import (
    ADVANTAGE_DEFAULTS,
    AdvantageConfig,
    RoleBaseline,
    SeatGroup,
    datums_to_value,
    estimator,
    gae,
    policy_batch,
    with_values,
)
from tinker_actors.algorithms.pass_at_k import pass_at_k
from tinker_actors.algorithms.reinforce_pp import reinforce_pp, reinforce_pp_baseline
from tinker_actors.data import EpisodeEnd, ModelInput, Trajectory, Turn, TurnEnd
from tinker_actors.errors import AlgorithmError, ConfigError

REWARDS = st.lists(st.lists(st.floats(-100, 100), min_size=1, max_size=6), min_size=1, max_size=5)


def trajectory(*turns: tuple[int, float], restarts: bool = False, seat: str = "x") -> Trajectory:
    """Turns of (action tokens, reward), each after two tokens of observation."""
    return Trajectory(
        seat=seat,
        policy="p",
        turns=tuple(
            Turn(
                observation=ModelInput.of([1, 2]),
                action=(3,) * length,
                logprobs=(-0.5,) * length,
                end=TurnEnd.STOP,
                reward=reward,
                restarts=restarts and number > 0,
            )
            for number, (length, reward) in enumerate(turns)
        ),
        end=EpisodeEnd.TERMINATED,
    )


def seats(*rewards: Sequence[float], environment: str = "e", seat: str = "x") -> list[SeatGroup]:
    return [
        SeatGroup(environment=environment, seat=seat, members=tuple(trajectory((2, reward)) for reward in row))
        for row in rewards
    ]


def advantages(name: Any, groups: Sequence[SeatGroup], **settings: Any) -> list[Any]:
    found = estimator(AdvantageConfig(name=name, **settings))(groups)
    return [signal.advantage for row in found for signal in row]


@given(REWARDS)
def test_reinforce_pp_normalises_over_the_batch(groups: list[list[float]]):
    flat = list(itertools.chain.from_iterable(groups))
    found = list(itertools.chain.from_iterable(reinforce_pp(groups)))
    if (deviation := statistics.pstdev(flat)) > 1e-6:
        mean = statistics.fmean(flat)
        assert found == pytest.approx([(value - mean) / deviation for value in flat], rel=1e-6, abs=1e-6)
    assert all(math.isfinite(value) for value in found)


@given(REWARDS)
def test_its_baseline_variant_takes_group_means_off_first(groups: list[list[float]]):
    differences = [value - statistics.fmean(row) for row in groups for value in row]
    found = list(itertools.chain.from_iterable(reinforce_pp_baseline(groups)))
    if (deviation := math.sqrt(statistics.fmean(value * value for value in differences))) > 1e-6:
        assert found == pytest.approx([value / deviation for value in differences], rel=1e-6, abs=1e-6)
    for row, own in zip(groups, reinforce_pp_baseline(groups), strict=True):
        if len(set(row)) == 1:
            assert own == [0.0] * len(row)


def test_reinforce_pp_by_hand():
    assert advantages("reinforce_pp", seats([1], [0], [1], [0])) == [1.0, -1.0, 1.0, -1.0]
    assert advantages("reinforce_pp_baseline", seats([3, 1], [9, 9], [8, 8], [8, 6])) == pytest.approx(
        [math.sqrt(2), -math.sqrt(2), 0, 0, 0, 0, math.sqrt(2), -math.sqrt(2)]
    )


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=7), st.data())
def test_pass_at_k_is_what_a_sample_adds_to_the_best_of_a_set(rewards: list[float], data: st.DataObject):
    k = data.draw(st.integers(2, len(rewards)))
    expected: list[float] = []
    for index in range(len(rewards)):
        others = [reward for place, reward in enumerate(rewards) if place != index]
        gains = [max(rewards[index], *some) - max(some) for some in itertools.combinations(others, k - 1)]
        expected.append(k * statistics.fmean(gains))
    assert pass_at_k(rewards, k=k) == pytest.approx(expected, abs=1e-9)


def test_pass_at_k_averages_to_the_gradient_of_the_chance_that_one_of_k_succeeds():
    count, k, chance = 4, 3, 0.3
    total = 0.0
    for wins in itertools.product([1.0, 0.0], repeat=count):
        likelihood = math.prod(chance if win else 1 - chance for win in wins)
        scores = [1 / chance if win else -1 / (1 - chance) for win in wins]
        terms = zip(pass_at_k(wins, k=k), scores, strict=True)
        total += likelihood * math.fsum(value * score for value, score in terms) / count
    assert total == pytest.approx(k * (1 - chance) ** (k - 1))  # the derivative of 1 - (1 - p)^k


def test_pass_at_k_refuses_groups_smaller_than_k():
    with pytest.raises(AlgorithmError, match="group of 2; at least pass_k = 4"):
        advantages("pass_at_k", seats([1, 0]))


def test_a_role_has_a_running_baseline_of_its_own():
    estimate = RoleBaseline(0.5)
    (first,) = estimate(seats([1, 0], seat="first"))
    # it begins at 0.5: 0.5 + 0.5 * 0.5 = 0.75, then 0.75 - 0.5 * 0.75 = 0.375
    assert [signal.advantage for signal in first] == [0.25, -0.375]
    (second,) = estimate(seats([-1, -1], seat="second"))
    assert [signal.advantage for signal in second] == [0.0, 0.0]
    (elsewhere,) = estimate(seats([7], seat="first", environment="other"))
    assert elsewhere[0].advantage == 0.0
    (again,) = estimate(seats([1], seat="first"))
    assert again[0].advantage == 1 - (0.375 + 0.5 * 0.625)
    assert estimate.baselines == {"e/first": 0.6875, "e/second": -1.0, "other/first": 7.0}


def test_a_role_baseline_goes_on_from_what_it_remembered():
    whole, before = RoleBaseline(0.9), RoleBaseline(0.9)
    for estimate in (whole, before):
        estimate(seats([1, -1, 1]))
    after = RoleBaseline(0.9, before.baselines)
    assert after(seats([1, 0])) == whole(seats([1, 0]))


def test_observations_neither_decay_nor_lose_a_reward():  # L11
    groups = [SeatGroup(environment="e", seat="x", members=(trajectory((2, 0), (2, 1)), trajectory((2, 0), (2, -1))))]
    won, lost = advantages("turn_returns", groups)
    assert won == ((1.0, 1.0), (1.0, 1.0))
    assert lost == ((-1.0, -1.0), (-1.0, -1.0))
    won, _ = advantages("turn_returns", groups, discount=0.5)
    assert won == ((0.5, 0.5), (1.0, 1.0))
    won, _ = advantages("turn_returns", groups, discount=0.5, discount_per="token")
    assert won == ((0.125, 0.25), (0.5, 1.0))


def test_a_turn_is_worth_what_follows_it():
    groups = [
        SeatGroup(environment="e", seat="x", members=(trajectory((1, 5), (1, 1)),)),
        SeatGroup(environment="e", seat="x", members=(trajectory((1, 5), (1, 3)),)),
        SeatGroup(environment="e", seat="x", members=(trajectory((1, 8)),)),
    ]
    assert advantages("turn_returns", groups, baseline="batch") == [
        (pytest.approx((6 - 22 / 3,)), (-1.0,)),
        (pytest.approx((8 - 22 / 3,)), (1.0,)),
        (pytest.approx((8 - 22 / 3,)),),
    ]


def plain_gae(rewards: Sequence[float], values: Sequence[float], gamma: Sequence[float], lam: float) -> list[float]:
    """The sum over all later steps of (gamma lambda)^l delta, term by term."""
    after = [*values[1:], 0.0]
    deltas = [reward + g * later - value for reward, g, later, value in zip(rewards, gamma, after, values, strict=True)]
    return [
        math.fsum(deltas[end] * math.prod(g * lam for g in gamma[start:end]) for end in range(start, len(deltas)))
        for start in range(len(deltas))
    ]


@given(
    st.lists(st.tuples(st.integers(1, 3), st.floats(-2, 2)), min_size=1, max_size=4),
    st.floats(0, 1),
    st.floats(0, 1),
    st.sampled_from(["turn", "token"]),
    st.randoms(use_true_random=False),
)
def test_gae_equals_its_sum_over_later_steps(turns, discount, trace_decay, per, luck):
    values = tuple(tuple(luck.uniform(-1, 1) for _ in range(length)) for length, _ in turns)
    rewards = [reward if place == length - 1 else 0.0 for length, reward in turns for place in range(length)]
    inner = discount if per == "token" else 1.0
    gamma = [discount if place == length - 1 else inner for length, _ in turns for place in range(length)]
    found = gae([reward for _, reward in turns], values, discount=discount, trace_decay=trace_decay, per=per)
    assert [len(row) for row in found] == [length for length, _ in turns]
    expected = plain_gae(rewards, list(itertools.chain.from_iterable(values)), gamma, trace_decay)
    assert list(itertools.chain.from_iterable(found)) == pytest.approx(expected, abs=1e-9)


def test_gae_gives_the_whole_return_to_every_action_token():  # L11
    zeros = ((0.0, 0.0), (0.0, 0.0))
    assert gae([0.0, 1.0], zeros, discount=1.0, trace_decay=1.0) == ((1.0, 1.0), (1.0, 1.0))
    assert gae([0.0, 1.0], zeros, discount=0.5, trace_decay=1.0) == ((0.125, 0.25), (0.5, 1.0))
    assert gae([0.0, 1.0], zeros, discount=0.5, trace_decay=1.0, per="turn") == ((0.5, 0.5), (1.0, 1.0))
    # the reward of a turn that sampled nothing goes to the last action before it
    assert gae([0.0, 1.0], ((0.0, 0.25), ()), discount=1.0, trace_decay=0.0) == ((0.25, 0.75), ())


@pytest.mark.parametrize("restarts", [False, True])
def test_values_and_what_is_made_of_them_stand_at_their_tokens(restarts: bool):
    member = trajectory((2, 0), (1, 1), restarts=restarts)
    groups = [SeatGroup(environment="e", seat="x", members=(member, trajectory((1, 0))))]
    datums = datums_to_value(groups)
    assert len(datums) == (3 if restarts else 2)
    count = itertools.count(1)
    rows = [[float(next(count)) if bit else 99.0 for bit in datum.mask or ()] for datum in datums]
    valued = with_values(groups, datums, rows)
    assert valued[0].values == (((1.0, 2.0), (3.0,)), ((4.0,),))
    settings = {"normalise": False, "trace_decay": 1.0}
    estimate = estimator(AdvantageConfig(name="gae", **settings))
    batch = policy_batch(valued, estimate, "token_sum", keep_flat=True)
    sampled = [
        [
            entry
            for datum in batch.datums
            for entry, bit in zip(getattr(datum, name), datum.mask or (), strict=True)
            if bit
        ]
        for name in ("advantages", "returns", "values")
    ]
    assert sampled == [[0.0, -1.0, -2.0, -4.0], [1.0, 1.0, 1.0, 0.0], [1.0, 2.0, 3.0, 4.0]]
    for datum in batch.datums:  # L10
        for row in (datum.advantages, datum.returns, datum.values):
            assert not any(entry for entry, bit in zip(row or (), datum.mask or (), strict=True) if not bit)
    with pytest.raises(AlgorithmError, match="one value per target"):
        with_values(groups, datums, rows[1:])


@pytest.mark.parametrize("name", ADVANTAGE_DEFAULTS)
@pytest.mark.parametrize("rewards", [[[1, 1, 1, 1]], [[0.3] * 4, [0.3] * 5]])
def test_rewards_that_never_differ_give_exactly_zero(name: Any, rewards: list[list[float]]):  # L8
    groups = seats(*rewards)
    datums = datums_to_value(groups)
    groups = with_values(groups, datums, [[0.25] * len(datum) for datum in datums])
    for value in advantages(name, groups, **({"trace_decay": 1.0} if name == "gae" else {})):
        rows = [value] if isinstance(value, float) else [entry for row in value for entry in row]
        assert not any(rows)


def test_a_group_of_one_is_zero_where_its_baseline_is_its_own():  # L8
    for name in ("grpo", "grpo_no_std", "dr_grpo", "reinforce_pp", "reinforce_pp_baseline", "max_rl", "role_baseline"):
        assert advantages(name, seats([3.0])) == [0.0]
    assert advantages("turn_returns", seats([3.0])) == [((0.0, 0.0),)]


def test_settings_are_named_when_they_are_refused():
    with pytest.raises(ConfigError, match="'gppo'"):
        AdvantageConfig(name="gppo")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match=r"trace_decay is 0.9, but turn_returns has no such setting"):
        AdvantageConfig(name="turn_returns", trace_decay=0.9)
    with pytest.raises(ConfigError, match=r"discount is 1.5; a number from 0 to 1"):
        AdvantageConfig(name="gae", discount=1.5)
    with pytest.raises(ConfigError, match="discount_per is 'word'"):
        AdvantageConfig(name="gae", discount_per="word")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="baseline_decay is 1"):
        AdvantageConfig(name="role_baseline", baseline_decay=1.0)
    with pytest.raises(ConfigError, match="pass_k is 1"):
        AdvantageConfig(name="pass_at_k", pass_k=1)
