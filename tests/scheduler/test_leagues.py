"""Leagues: which snapshots are in the pool, how opponents are drawn, and what a resumed run takes up."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from tinker_actors.data import Episode, EpisodeEnd, Group, ModelInput, SamplingRecord, Task, Trajectory, Turn, TurnEnd
from tinker_actors.rollouts import points, policy_metrics, seat_outcomes
from tinker_actors.scheduler.league import Member, Pool, due
from tinker_actors.scheduler.players import SeatSection
from tinker_actors.scheduler.versions import Version

TASK = Task(environment="game", seed=1)


def league(**settings: object) -> SeatSection:
    return SeatSection.model_validate({"player": "league", "policy": "p", **settings})


def pool(*names: str) -> Pool:
    return Pool(members=tuple(Member(snapshot=name) for name in names))


def drawn(members: Pool, settings: SeatSection, times: int = 2000) -> dict[str, float]:
    luck = Random(0)
    counts = Counter(members.draw(settings, luck, newest="now") for _ in range(times))
    return {name: count / times for name, count in counts.items()}


def test_snapshots_enter_at_their_steps_and_the_oldest_leaves_a_full_pool():
    settings = league(every=3, size=2)
    assert [step for step in range(1, 10) if due(settings, step)] == [3, 6, 9]
    found = Pool()
    for name in ("a", "b", "c"):
        found = found.entered(name, settings)
    assert [member.snapshot for member in found.members] == ["b", "c"]


@pytest.mark.parametrize(
    ("settings", "weights"),
    [
        ({}, [1, 1, 1, 1]),
        ({"rule": "latest_k", "latest_k": 2}, [0, 0, 1, 1]),
        ({"rule": "latest_k", "latest_k": 9}, [1, 1, 1, 1]),
        ({"rule": "age", "age_decay": 0.5}, [0.125, 0.25, 0.5, 1]),
        ({"rule": "win_rate"}, [0.25, 0.25, 0.25, 0.25]),
    ],
)
def test_each_rule_weighs_the_members_in_its_own_way(settings: dict[str, object], weights: list[float]):
    assert pool("a", "b", "c", "d").weights(league(**settings)) == pytest.approx(weights)


def test_opponents_are_drawn_by_their_weights_and_the_newest_by_its_share():
    found = drawn(pool("a", "b"), league(rule="age", age_decay=0.25, self_share=0.5))
    assert found == pytest.approx({"now": 0.5, "b": 0.4, "a": 0.1}, abs=0.05)
    assert drawn(pool("a"), league(self_share=0.0)) == {"a": 1.0}
    assert drawn(pool("a"), league(self_share=1.0)) == {"now": 1.0}
    assert drawn(Pool(), league(self_share=0.0)) == {"now": 1.0}


def test_those_that_still_beat_the_learner_are_met_most():
    settings = league(rule="win_rate", win_rate_power=1.0)
    found = pool("easy", "even", "hard").scored({"easy": [1.0] * 9, "hard": [0.0] * 9, "stranger": [1.0]})
    easy, even, hard = found.members
    assert (easy.win_rate, even.win_rate, hard.win_rate) == (0.95, 0.5, 0.05)
    assert found.weights(settings) == pytest.approx([0.05, 0.5, 0.95])
    later = found
    for _ in range(20):  # the learner has caught up: old games count less and less
        later = later.scored({"hard": [1.0] * 9})
    assert later.members[2].win_rate > 0.85


def test_a_pool_whose_members_weigh_nothing_still_gives_an_opponent():
    beaten = Pool(
        members=(Member(snapshot="a", games=1e300, points=1e300), Member(snapshot="b", games=1e300, points=1e300))
    )
    assert beaten.weights(league(rule="win_rate")) == [0.0, 0.0]
    assert set(drawn(beaten, league(rule="win_rate", self_share=0.0))) == {"a", "b"}


def test_a_version_under_other_handles_keeps_what_is_known_of_its_members():
    found = pool("a", "b").scored({"b": [1.0]})
    version = Version(snapshots={"p": "b", "q": "c"}, pools={"o": found})
    renamed = version.renamed({"b": "new"})
    assert renamed.snapshots == {"p": "new", "q": "c"}
    assert [member.snapshot for member in renamed.pools["o"].members] == ["a", "new"]
    assert renamed.pools["o"].members[1].games == 1.0
    assert version.handles == ("a", "b", "c")


def trajectory(
    seat: str, reward: float, *, policy: str = "p", snapshot: str = "s", trainable: bool = True
) -> Trajectory:
    record = SamplingRecord(snapshot_min=snapshot, snapshot_max=snapshot, snapshot_step=0, temperature=1.0)
    turn = Turn(
        observation=ModelInput.of([1]), action=(2,), logprobs=(-1.0,), end=TurnEnd.STOP, reward=reward, sampling=record
    )
    return Trajectory(seat=seat, policy=policy, turns=(turn,), end=EpisodeEnd.TERMINATED, trainable=trainable)


def game(number: int, *entries: Trajectory) -> Episode:
    return Episode(id=f"e{number}", task=TASK, end=EpisodeEnd.TERMINATED, trajectories=entries)


def test_outcomes_follow_from_what_all_seats_earned_and_count_those_that_learn():
    old = {"policy": "p", "snapshot": "old", "trainable": False}
    group = Group(
        task=TASK,
        episodes=(
            game(1, trajectory("x", 1.0), trajectory("o", -1.0, **old)),
            game(2, trajectory("x", 0.0), trajectory("o", 0.0, **old)),
            game(3, trajectory("x", -1.0), trajectory("o", 1.0, **old)),
            game(4, trajectory("o", 1.0), trajectory("x", -1.0, **old)),
        ),
    )
    assert points([group]) == {"old": [1.0, 0.5, 0.0, 1.0]}
    found = seat_outcomes([group])
    assert found == pytest.approx(
        {"win/x": 1 / 3, "draw/x": 1 / 3, "loss/x": 1 / 3, "win/o": 1.0, "draw/o": 0.0, "loss/o": 0.0}
    )
    metrics = policy_metrics([group], ["p"])
    assert (metrics["policy/p/win"], metrics["policy/p/reward"], metrics["policy/p/action_tokens"]) == (0.5, 0.25, 4)


def test_partners_that_earn_the_same_win_and_lose_together():
    group = Group(
        task=TASK,
        episodes=(game(1, trajectory("a", 1.0), trajectory("b", 1.0), trajectory("c", -1.0), trajectory("d", -1.0)),),
    )
    found = seat_outcomes([group])
    assert [found[f"win/{seat}"] for seat in "abcd"] == [1.0, 1.0, 0.0, 0.0]
    assert [found[f"loss/{seat}"] for seat in "abcd"] == [0.0, 0.0, 1.0, 1.0]
