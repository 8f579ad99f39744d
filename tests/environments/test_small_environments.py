"""The bandit and the signalling game."""

import pytest
from boards import fresh, game

from tinker_actors.environments import load_environment
from tinker_actors.errors import ConfigError

SPEAKER, LISTENER = "speaker", "listener"


@pytest.mark.parametrize(("arm", "chance"), [("a", 0.1), ("c", 0.5), (" e\n", 0.9), ("f", 0.0), ("", 0.0), ("ab", 0.0)])
def test_each_arm_of_the_bandit_pays_as_often_as_it_says(arm, chance):
    steps = [fresh("bandit", luck=luck)[0].step(arm) for luck in range(600)]
    assert all(step.terminated for step in steps)
    assert sum(step.reward for step in steps) / 600 == pytest.approx(chance, abs=0.07)
    invalid, best = arm.strip() not in tuple("abcde"), arm.strip() == "e"
    assert {tuple(step.metrics.values()) for step in steps} == {(float(invalid), float(best))}


def test_the_bandit_has_no_state():
    assert {fresh("bandit", seed=seed, luck=seed)[1] for seed in range(50)} == {"pull a-e"}
    assert fresh("bandit", arms=26)[1] == "pull a-z"


def test_bandits_of_all_sizes_have_their_best_arm_last():
    environment, _ = fresh("bandit", arms=2, lowest=0.25, highest=0.75)
    assert environment.chances == {"a": 0.25, "b": 0.75}
    environment, _ = fresh("bandit", arms=3, lowest=0.0, highest=1.0)
    assert environment.chances == {"a": 0.0, "b": 0.5, "c": 1.0}


def test_the_bandit_demonstrates_every_arm():
    environment, _ = fresh("bandit")
    shown = [environment.demonstrate() for _ in range(500)]
    assert all(60 < shown.count(arm) < 140 for arm in "abcde")


def test_both_seats_of_the_signalling_game_earn_what_the_listener_gets_right():
    environment, observation = fresh("signalling", seed=2)
    assert observation == {SPEAKER: f"say {environment.object}"}
    step = environment.step({SPEAKER: " c "})
    assert (step.observation, step.terminated) == ({LISTENER: "hear c"}, False)
    for name in environment.objects:
        _, steps = game("signalling", "c", f" {name}\n", seed=2)
        reward = float(name == environment.object)
        assert (steps[-1].terminated, steps[-1].reward) == (True, {SPEAKER: reward, LISTENER: reward})
        assert steps[-1].metrics == {"invalid": 0.0}


@pytest.mark.parametrize(
    "moves", [("",), ("e",), ("ab",), ("red",), ("a", ""), ("a", "a"), ("a", "pink"), ("a", "red blue")]
)
def test_words_that_are_not_of_the_signalling_game_end_it_without_reward(moves):
    _, steps = game("signalling", *moves)
    assert (steps[-1].terminated, steps[-1].reward) == (True, {SPEAKER: 0.0, LISTENER: 0.0})
    assert steps[-1].metrics == {"invalid": 1.0}


def test_the_object_of_the_signalling_game_comes_from_the_task():
    objects = [fresh("signalling", seed=seed, luck=seed)[0].object for seed in range(400)]
    assert objects == [fresh("signalling", seed=seed, luck=0)[0].object for seed in range(400)]
    assert all(70 < objects.count(name) < 130 for name in ("red", "blue", "green", "gold"))


@pytest.mark.parametrize(("skill", "least", "most"), [(0.0, 0.18, 0.32), (0.5, 0.35, 0.55), (1.0, 1.0, 1.0)])
def test_the_signalling_game_demonstrates_a_convention_as_often_as_it_says(skill, least, most):
    rewards = []
    for number in range(400):
        environment, _ = fresh("signalling", seed=number, luck=number, skill=skill)
        environment.step({SPEAKER: environment.demonstrate(SPEAKER)})
        rewards.append(environment.step({LISTENER: environment.demonstrate(LISTENER)}).reward[SPEAKER])
    assert least <= sum(rewards) / 400 <= most


def test_the_signalling_game_demonstrates_words_without_a_meaning():
    environment, _ = fresh("signalling", objects=8, signals=2)
    assert {environment.demonstrate(SPEAKER) for _ in range(200)} == {"a", "b"}
    environment.step({SPEAKER: "a"})
    assert {environment.demonstrate(LISTENER) for _ in range(400)} == set(environment.objects)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("bandit", {"arms": 1}),
        ("bandit", {"arms": 27}),
        ("bandit", {"lowest": 0.6, "highest": 0.5}),
        ("bandit", {"highest": 1.5}),
        ("signalling", {"objects": 9}),
        ("signalling", {"signals": 1}),
        ("signalling", {"skill": 2.0}),
    ],
)
def test_options_that_cannot_work_are_refused(name, options):
    with pytest.raises(ConfigError, match=" is "):
        load_environment(name, **options)()
