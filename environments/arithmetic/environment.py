"""Add two numbers; one turn."""

from __future__ import annotations

import random

from tinker_actors.environments import Environment, Step
from tinker_actors.errors import ConfigError


class Arithmetic(Environment):
    """`a+b=` with numbers of at most `digits` digits; reward 1 for the exact sum.

    Args:
        digits: Of each number at most.
        noise: The share of demonstrations that are one or two off.
        held_out: Every so many-th question is asked by evaluations alone, and they ask no other.
    """

    max_turns = 1

    def __init__(self, digits: int = 1, noise: float = 0.7, held_out: int = 5) -> None:
        if digits < 1:
            raise ConfigError(f"digits is {digits}; at least 1 is needed")
        if not 0 <= noise <= 1:
            raise ConfigError(f"noise is {noise}; a share between 0 and 1 is needed")
        if held_out < 3:
            raise ConfigError(f"held_out is {held_out}; at least 3 is needed")
        self.limit = 10**digits
        self.noise, self.held_out = noise, held_out

    def reset(self, seed: int) -> str:
        """Draw the two numbers from the task's seed."""
        task = random.Random(seed)
        while True:
            a, b = task.randrange(self.limit), task.randrange(self.limit)
            if ((a + 2 * b) % self.held_out == 0) == self.evaluating:
                break
        self.total = a + b
        return f"{a}+{b}="

    def step(self, action: str) -> Step:
        """Reward the exact sum."""
        return Step(reward=float(action.strip() == str(self.total)), terminated=True)

    def demonstrate(self) -> str:
        """The sum, or a number next to it."""
        if self.rng.random() >= self.noise:
            return str(self.total)
        return str(self.rng.choice([near for off in (-2, -1, 1, 2) if (near := self.total + off) >= 0]))
