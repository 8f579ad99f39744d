"""Kuhn poker: every hand there is, and exploitability against values known from theory."""

import itertools
import random

import pytest
from boards import fresh, module_of

from tinker_actors.environments import load_environment
from tinker_actors.errors import ConfigError

FIRST, SECOND = "first", "second"
MODULE = module_of("kuhn_poker")
DEALS = list(itertools.permutations("JQK", 2))
# course of the hand: what first wins by a higher card, and by a lower one
ENDS = {
    ("pass", "pass"): (1, -1),
    ("pass", "bet", "pass"): (-1, -1),
    ("pass", "bet", "bet"): (2, -2),
    ("bet", "pass"): (1, 1),
    ("bet", "bet"): (2, -2),
}


def seed_of(cards):
    def dealt(seed):
        environment, _ = fresh("kuhn_poker", seed=seed)
        return environment.cards[FIRST], environment.cards[SECOND]

    return next(seed for seed in range(1000) if dealt(seed) == cards)


@pytest.mark.parametrize("cards", DEALS)
@pytest.mark.parametrize("course", ENDS)
def test_every_hand_pays_what_it_should_and_shows_each_seat_its_own_card_alone(cards, course):
    environment, observation = fresh("kuhn_poker", seed=seed_of(cards))
    shown = {FIRST: [], SECOND: []}
    for place, move in enumerate(course):
        seat = (FIRST, SECOND)[place % 2]
        assert list(observation) == [seat]
        shown[seat].append(observation[seat])
        step = environment.step({seat: move})
        assert step.terminated == (place == len(course) - 1)
        observation = step.observation
    higher, lower = ENDS[course]
    won = higher if "JQK".index(cards[0]) > "JQK".index(cards[1]) else lower
    assert step.reward == {FIRST: won, SECOND: -won}
    assert shown[FIRST] == [cards[0], "bet"][: len(shown[FIRST])]
    assert shown[SECOND] == [f"{cards[1]} {course[0]}"]


@pytest.mark.parametrize("action", ["", "call", " bet", "pass\n", "BET", "check"])
@pytest.mark.parametrize("before", [(), ("pass",), ("bet",), ("pass", "bet")])
def test_what_is_no_move_to_the_letter_costs_two_chips(before, action):
    environment, _ = fresh("kuhn_poker", seed=3)
    for place, move in enumerate(before):
        environment.step({(FIRST, SECOND)[place % 2]: move})
    seat, other = (FIRST, SECOND) if len(before) % 2 == 0 else (SECOND, FIRST)
    step = environment.step({seat: action})
    assert (step.terminated, step.reward) == (True, {seat: -2.0, other: 2.0})
    assert step.metrics == {"illegal": 1.0}


def test_the_cards_come_from_the_task_alone_and_all_deals_are_as_likely():
    deals = [tuple(fresh("kuhn_poker", seed=seed, luck=seed)[0].cards.values()) for seed in range(600)]
    again = [tuple(fresh("kuhn_poker", seed=seed, luck=1)[0].cards.values()) for seed in range(600)]
    assert deals == again
    assert all(70 < deals.count(deal) < 130 for deal in DEALS)


def test_the_rules_come_with_the_first_observation_of_each_seat_if_asked_for():
    environment, observation = fresh("kuhn_poker", explain=True)
    assert observation[FIRST] == MODULE.RULES + environment.cards[FIRST]
    second = environment.step({FIRST: "pass"}).observation[SECOND]
    assert second == f"{MODULE.RULES}{environment.cards[SECOND]} pass"
    assert environment.step({SECOND: "bet"}).observation == {FIRST: "bet"}


def strategy(bets):
    """A strategy of both seats from the chance to bet in each information set."""
    keys = [key for seat in (FIRST, SECOND) for key in MODULE.information_sets(seat)]
    return {key: {"pass": 1 - bets(key), "bet": bets(key)} for key in keys}


def test_equilibria_can_not_be_exploited_and_are_worth_an_eighteenth():
    for alpha in (0.0, 1 / 6, 1 / 3):  # Kuhn's family of equilibria

        def bets(key, alpha=alpha):
            return {
                ("J", ()): alpha,
                ("K", ()): 3 * alpha,
                ("Q", ("pass", "bet")): alpha + 1 / 3,
                ("K", ("pass", "bet")): 1.0,
                ("J", ("pass",)): 1 / 3,
                ("K", ("pass",)): 1.0,
                ("Q", ("bet",)): 1 / 3,
                ("K", ("bet",)): 1.0,
            }.get(key, 0.0)

        found = strategy(bets)
        assert MODULE.exploitability(found) == pytest.approx(0.0, abs=1e-12)
        assert MODULE.best_response(found, FIRST) == pytest.approx(-1 / 18)
        assert MODULE.best_response(found, SECOND) == pytest.approx(1 / 18)
    assert MODULE.exploitability(MODULE.EQUILIBRIUM) == pytest.approx(0.0, abs=1e-12)


def test_exploitability_of_plain_strategies():
    assert MODULE.exploitability(strategy(lambda key: 0.5)) == pytest.approx(11 / 24)
    # who always passes gives its chip to every bet, and who always bets is called with K and, equally well, with Q
    assert MODULE.exploitability(strategy(lambda key: 0.0)) == pytest.approx(1.0)
    assert MODULE.exploitability(strategy(lambda key: 1.0)) == pytest.approx(1 / 3)
    # replies that are no move give two chips away whatever the other does
    nothing = {key: {"pass": 0.0, "bet": 0.0} for key in strategy(lambda key: 0.0)}
    assert MODULE.exploitability(nothing) == pytest.approx(2.0)


def test_the_best_response_is_the_best_of_all_pure_ones():
    rng = random.Random(0)
    for _ in range(5):
        chances = {key: rng.random() for key in strategy(lambda key: 0.0)}
        found = strategy(chances.__getitem__)
        for seat in (FIRST, SECOND):
            own = MODULE.information_sets(seat)
            pure = itertools.product((0.0, 1.0), repeat=len(own))
            values = [_value(found | strategy_of(own, choice), seat) for choice in pure]
            assert MODULE.best_response(found, seat) == pytest.approx(max(values))


def strategy_of(keys, bets):
    return {key: {"pass": 1 - bet, "bet": bet} for key, bet in zip(keys, bets, strict=True)}


def _value(strategies, seat):
    """What a seat wins per hand, by walking all hands."""
    total = 0.0
    for first, second in DEALS:
        for course, (higher, lower) in ENDS.items():
            chance = 1.0
            for place, move in enumerate(course):
                chance *= strategies[(first, second)[place % 2], course[:place]][move]
            total += chance * (higher if "JQK".index(first) > "JQK".index(second) else lower) / 6
    return total if seat == FIRST else -total


def test_demonstrations_are_of_an_equilibrium_as_often_as_they_say():
    environment, _ = fresh("kuhn_poker", seed=seed_of(("Q", "J")), skill=1.0)
    assert {environment.demonstrate(FIRST) for _ in range(100)} == {"pass"}
    environment, _ = fresh("kuhn_poker", seed=seed_of(("Q", "J")), skill=0.5)
    assert 40 < sum(environment.demonstrate(FIRST) == "bet" for _ in range(300)) < 110


def test_a_skill_that_is_no_share_is_refused():
    with pytest.raises(ConfigError, match="skill is 2"):
        load_environment("kuhn_poker", skill=2.0)()
