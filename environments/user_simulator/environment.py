"""A simulated user who wants something particular: ask for what was not said, then place the order."""

from __future__ import annotations

import random
from itertools import product

from tinker_actors.environments import Environment, Step
from tinker_actors.errors import ConfigError

MENU = {"size": ("small", "large"), "drink": ("tea", "cocoa", "milk"), "place": ("here", "togo")}
"""What can be chosen, by the word that asks for it."""
WISHES = tuple(product(*MENU.values()))
HELD_OUT = tuple(
    wish
    for wish in WISHES
    if sum(values.index(value) for values, value in zip(MENU.values(), wish, strict=True)) % 3 == 2
)
"""A third of what users may wish: evaluations alone serve them. Every value is part of others."""
PHRASES = ("{}", "{} please", "oh, {}", "{} I think")


class UserSimulator(Environment):
    """A dialogue to fill slots. The user's wish is the task's; wording and patience are the episode's own luck.

    The user begins with a part of the wish. `size?`, `drink?` and `place?` are answered; `order large tea here` ends
    the dialogue; it earns 1 if all of it is right, less `cost` for every question.

    Args:
        told: How many slots the first message may give away at most.
        cost: Of a question; one whose answer was given already costs twice as much.
        patience: How many questions the user answers at most; on the next one they leave, and nothing is earned. Each
            user has at least as much patience as there are slots.
        skill: The share of demonstrated turns that ask for what is missing and then order; the others ask for
            anything, or order with guesses in place of what is missing.
    """

    def __init__(self, told: int = 1, cost: float = 0.05, patience: int = 5, skill: float = 0.3) -> None:
        if not 0 <= told <= len(MENU):
            raise ConfigError(f"told is {told}; 0 to {len(MENU)} slots are needed")
        if not 0 <= cost <= 1:
            raise ConfigError(f"cost is {cost}; 0 to 1 is needed")
        if patience < len(MENU):
            raise ConfigError(f"patience is {patience}; at least {len(MENU)}, a question for each slot, is needed")
        if not 0 <= skill <= 1:
            raise ConfigError(f"skill is {skill}; a share from 0 to 1 is needed")
        self.told, self.cost, self.patience, self.skill = told, cost, patience, skill
        self.max_turns = patience + 1

    def reset(self, seed: int) -> str:
        """A user who says hello and a part of what they want."""
        task = random.Random(seed)
        wishes = HELD_OUT if self.evaluating else [wish for wish in WISHES if wish not in HELD_OUT]
        self.wish = dict(zip(MENU, task.choice(wishes), strict=True))
        self.known = set(task.sample(list(MENU), task.randint(0, self.told)))
        self.left = self.rng.randint(len(MENU), self.patience)
        self.spent = 0.0
        given = [self.wish[slot] for slot in MENU if slot in self.known]
        return self._worded(" ".join(given)) if given else "hello"

    def step(self, action: str) -> Step:
        """Answer a question, or judge the order."""
        words = action.split()
        if len(words) == len(MENU) + 1 and words[0] == "order":
            right = sum(word == wanted for word, wanted in zip(words[1:], self.wish.values(), strict=True))
            metrics = {"invalid": 0.0, "satisfied": float(right == len(MENU)), "slots": right / len(MENU)}
            return Step(reward=float(right == len(MENU)) - self.spent, terminated=True, metrics=metrics)
        slot = action.strip().removesuffix("?")
        if slot not in MENU or not action.strip().endswith("?"):
            return Step(reward=-0.5, terminated=True, metrics={"invalid": 1.0, "satisfied": 0.0, "slots": 0.0})
        if self.left == 0:
            return Step(terminated=True, metrics={"invalid": 0.0, "satisfied": 0.0, "slots": 0.0})
        self.left -= 1
        self.spent += self.cost * (2 if slot in self.known else 1)
        self.known.add(slot)
        return Step(observation=self._worded(self.wish[slot]))

    def demonstrate(self) -> str:
        """With probability `skill` the next question that is needed, or else the order; otherwise anything."""
        missing = [slot for slot in MENU if slot not in self.known]
        if self.rng.random() < self.skill:
            return f"{missing[0]}?" if missing else self._order()
        return self._order() if self.rng.random() < 0.3 else f"{self.rng.choice(list(MENU))}?"

    def _order(self) -> str:
        """What is known, and guesses for the rest."""
        return " ".join(("order", *(self.wish[s] if s in self.known else self.rng.choice(MENU[s]) for s in MENU)))

    def _worded(self, text: str) -> str:
        return self.rng.choice(PHRASES).format(text)
