"""Kuhn poker for two seats, and the exploitability of a strategy: the smallest game with hidden information.

Kuhn 1950, "A simplified two-person poker", Contributions to the Theory of Games.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from tinker_actors.environments import Environment, Forfeit, Step, TurnOrder
from tinker_actors.errors import ConfigError

CARDS = "JQK"
FIRST, SECOND = "first", "second"
RULES = (
    "Kuhn poker: J, Q and K, a card each, one chip in the pot each. pass checks or folds, bet bets or calls one chip "
    "more; the higher card wins. Answer pass or bet.\n"
)
MOVES = ("pass", "bet")
ENDS = (("pass", "pass"), ("pass", "bet", "pass"), ("pass", "bet", "bet"), ("bet", "pass"), ("bet", "bet"))
"""The courses that end a hand."""

Course = tuple[str, ...]
Strategy = Mapping[tuple[str, Course], Mapping[str, float]]
"""The chance of each move by (own card, what was played so far); what lacks to 1 is the chance of an illegal one."""


class KuhnPoker(Environment):
    """One hand. `first` acts first, each seat sees its own card and what the other one did, and rewards are chips.

    `skill` is the share of demonstrated moves from an equilibrium; the others are `pass` or `bet` alike. With
    `explain` a seat's first observation begins with the rules.
    """

    seats = (FIRST, SECOND)
    turn_order = TurnOrder.TURN_BASED
    forfeit_rule = Forfeit.LOSS
    max_turns = 3

    def __init__(self, skill: float = 0.0, explain: bool = False) -> None:
        if not 0 <= skill <= 1:
            raise ConfigError(f"skill is {skill}; a share from 0 to 1 is needed")
        self.skill, self.explain = skill, explain

    def reset(self, seed: int) -> dict[str, str]:
        """Deal from the task's seed: a group plays the same cards."""
        self.cards = dict(zip(self.seats, random.Random(seed).sample(CARDS, 2), strict=True))
        self.course: Course = ()
        return {FIRST: self._said(FIRST)}

    def step(self, actions: dict[str, str]) -> Step:
        """Play on, or pay. What is neither `pass` nor `bet`, to the letter, is a fold that costs two chips."""
        ((seat, action),) = actions.items()
        other = SECOND if seat == FIRST else FIRST
        if action not in MOVES:
            return Step(reward={seat: -2.0, other: 2.0}, terminated=True, metrics={"illegal": 1.0})
        self.course = (*self.course, action)
        if self.course not in ENDS:
            return Step(observation={other: self._said(other)})
        won = payoff(self.cards[FIRST], self.cards[SECOND], self.course)
        return Step(reward={FIRST: won, SECOND: -won}, terminated=True, metrics={"illegal": 0.0})

    def demonstrate(self, seat: str) -> str:
        """With probability `skill` as an equilibrium plays, else any move."""
        if self.rng.random() >= self.skill:
            return self.rng.choice(MOVES)
        chances = EQUILIBRIUM[self.cards[seat], self.course]
        return "bet" if self.rng.random() < chances["bet"] else "pass"

    def _said(self, seat: str) -> str:
        """The card at first, then what the other seat did."""
        rules = RULES if self.explain and len(self.course) < 2 else ""
        return rules + observation(self.cards[seat], self.course)


def observation(card: str, course: Course) -> str:
    """What the seat that is to act is shown: `K`, `K bet` or, where it has acted before, `bet`."""
    return " ".join((*((card,) if len(course) < 2 else ()), *course[-1:]))


def payoff(first: str, second: str, course: Course) -> float:
    """What `first` wins in chips at the end of a hand."""
    if course[-2:] == ("bet", "pass"):  # the one who did not call has lost its chip
        return 1.0 if len(course) == 2 else -1.0
    stake = 2.0 if course[-1] == "bet" else 1.0
    return stake if CARDS.index(first) > CARDS.index(second) else -stake


def information_sets(seat: str) -> list[tuple[str, Course]]:
    """Where a seat has to choose: its card and the course of the hand so far."""
    courses: tuple[Course, ...] = ((), ("pass", "bet")) if seat == FIRST else (("pass",), ("bet",))
    return [(card, course) for card in CARDS for course in courses]


def exploitability(strategy: Strategy) -> float:
    """What a best response wins per hand on average over both seats, in chips; 0 for an equilibrium alone.

    Exact: the best response is built backwards over its own information sets, each weighted by the chances with which
    the strategy comes there (Johanson et al. 2011, "Accelerating best response calculation in large extensive games").
    """
    return (best_response(strategy, FIRST) + best_response(strategy, SECOND)) / 2


def best_response(strategy: Strategy, seat: str) -> float:
    """What the best play in `seat` wins per hand against the strategy in the other seat."""
    deals = {card: {other: 1 / 6 for other in CARDS if other != card} for card in CARDS}
    return sum(_best(strategy, seat, card, reach, ()) for card, reach in deals.items())


def _best(strategy: Strategy, seat: str, card: str, reach: Mapping[str, float], course: Course) -> float:
    """The best value for `seat` with `card`, summed over the other's cards, each weighted by how likely it is here."""
    if course in ENDS:
        wins = (payoff(card, other, course) if seat == FIRST else -payoff(other, card, course) for other in reach)
        return sum(weight * won for weight, won in zip(reach.values(), wins, strict=True))
    if (FIRST, SECOND)[len(course) % 2] == seat:
        return max(_best(strategy, seat, card, reach, (*course, move)) for move in MOVES)
    chances = {other: strategy[other, course] for other in reach}
    illegal = sum(weight * (1 - sum(chances[other].values())) for other, weight in reach.items())
    return 2 * illegal + sum(
        _best(strategy, seat, card, {o: w * chances[o][move] for o, w in reach.items()}, (*course, move))
        for move in MOVES
    )


_BETS: Mapping[tuple[str, Course], float] = {
    ("J", ()): 1 / 6,
    ("K", ()): 1 / 2,
    ("Q", ("pass", "bet")): 1 / 2,
    ("K", ("pass", "bet")): 1.0,
    ("J", ("pass",)): 1 / 3,
    ("K", ("pass",)): 1.0,
    ("Q", ("bet",)): 1 / 3,
    ("K", ("bet",)): 1.0,
}
EQUILIBRIUM: Strategy = {
    key: {"pass": 1 - _BETS.get(key, 0.0), "bet": _BETS.get(key, 0.0)}
    for seat in (FIRST, SECOND)
    for key in information_sets(seat)
}
"""One of Kuhn's equilibria (that with alpha = 1/6); `first` loses 1/18 of a chip per hand."""
