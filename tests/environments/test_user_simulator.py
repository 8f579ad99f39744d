"""The simulated user: what is told, what is answered, what an order earns."""

import itertools

import pytest
from boards import fresh, module_of

from tinker_actors.environments import load_environment
from tinker_actors.errors import ConfigError

MENU = module_of("user_simulator").MENU
PHRASES = module_of("user_simulator").PHRASES


def values_in(text):
    return [word for word in text.replace(",", "").split() if any(word in values for values in MENU.values())]


def order(environment, **changes):
    return " ".join(("order", *(environment.wish | changes).values()))


@pytest.mark.parametrize("wrong", [slots for n in range(4) for slots in itertools.combinations(MENU, n)])
def test_an_order_earns_a_reward_if_all_of_it_is_right(wrong):
    environment, _ = fresh("user_simulator", seed=1)
    changes = {slot: next(value for value in MENU[slot] if value != environment.wish[slot]) for slot in wrong}
    step = environment.step(order(environment, **changes))
    assert step.terminated
    assert step.reward == float(not wrong)
    assert step.metrics == {"invalid": 0.0, "satisfied": float(not wrong), "slots": pytest.approx(1 - len(wrong) / 3)}


def test_questions_are_answered_and_cost():
    environment, opening = fresh("user_simulator", told=0)
    assert opening == "hello"
    for slot in MENU:
        step = environment.step(f"{slot}?")
        assert values_in(step.observation) == [environment.wish[slot]]
        assert (step.reward, step.terminated) == (0.0, False)
    assert environment.step(order(environment)).reward == pytest.approx(1 - 3 * 0.05)


def test_asking_for_what_was_said_costs_twice():
    environment, _ = fresh("user_simulator", told=0)
    environment.step("size?")
    environment.step("size?")
    assert environment.step(order(environment)).reward == pytest.approx(1 - 3 * 0.05)
    seed = next(seed for seed in range(50) if fresh("user_simulator", seed=seed)[0].known == {"drink"})
    environment, opening = fresh("user_simulator", seed=seed)
    assert values_in(opening) == [environment.wish["drink"]]
    environment.step("drink?")
    assert environment.step(order(environment)).reward == pytest.approx(1 - 2 * 0.05)


def test_a_user_leaves_when_patience_is_at_its_end():
    lengths = []
    for luck in range(60):
        environment, _ = fresh("user_simulator", luck=luck)
        step = environment.step("size?")
        questions = 1
        while not step.terminated:
            step = environment.step("size?")
            questions += 1
        assert (step.reward, step.metrics) == (0.0, {"invalid": 0.0, "satisfied": 0.0, "slots": 0.0})
        assert questions <= environment.max_turns
        lengths.append(questions - 1)
    assert set(lengths) == {3, 4, 5}


@pytest.mark.parametrize(
    "action", ["", "?", "size", "colour?", "order", "order small tea", "small tea here", "order a b c d"]
)
def test_what_is_neither_a_question_nor_an_order_ends_the_dialogue_at_a_loss(action):
    environment, _ = fresh("user_simulator")
    step = environment.step(action)
    assert (step.terminated, step.reward) == (True, -0.5)
    assert step.metrics == {"invalid": 1.0, "satisfied": 0.0, "slots": 0.0}


def test_the_wish_is_the_tasks_and_the_wording_the_episodes():
    seed = next(seed for seed in range(50) if fresh("user_simulator", seed=seed, told=3)[0].known)
    made = [fresh("user_simulator", seed=seed, luck=luck, told=3) for luck in range(40)]
    assert len({tuple(environment.wish.items()) for environment, _ in made}) == 1
    assert len({tuple(values_in(text)) for _, text in made}) == 1
    assert len({text for _, text in made}) == len(PHRASES)
    wishes = {tuple(fresh("user_simulator", seed=seed)[0].wish.values()) for seed in range(300)}
    assert len(wishes) == 8  # evaluations serve the other four
    told = [len(fresh("user_simulator", seed=seed, told=2)[0].known) for seed in range(300)]
    assert all(70 < told.count(number) < 130 for number in range(3))


@pytest.mark.parametrize(("skill", "least", "most"), [(1.0, 0.85, 1.0), (0.0, 0.0, 0.4)])
def test_demonstrations_are_as_good_as_they_say(skill, least, most):
    rewards = []
    for number in range(200):
        environment, _ = fresh("user_simulator", seed=number, luck=number, skill=skill)
        for _ in range(environment.max_turns):
            step = environment.step(environment.demonstrate())
            if step.terminated:
                break
        assert step.metrics["invalid"] == 0.0
        rewards.append(step.reward)
    assert least < sum(rewards) / len(rewards) < most


@pytest.mark.parametrize("options", [{"told": 4}, {"cost": 2.0}, {"patience": 2}, {"skill": -1.0}])
def test_options_that_cannot_work_are_refused(options):
    with pytest.raises(ConfigError, match=" is "):
        load_environment("user_simulator", **options)()
