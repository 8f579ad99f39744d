"""Add two numbers; one turn."""

from __future__ import annotations

import random

from tinker_actors.environments import Environment, Step
from tinker_actors.errors import ConfigError


class Arithmetic(Environment):
    """`a+b=` with numbers of at most `digits` digits; reward 1 for the exact sum."""

    max_turns = 1

    def __init__(self, digits: int = 1, noise: float = 0.7) -> None:
        """`noise` is the share of demonstrations that are a random number of the right size."""
        if digits < 1:
            raise ConfigError(f"digits is {digits}; at least 1 is needed")
        if not 0 <= noise <= 1:
            raise ConfigError(f"noise is {noise}; a share between 0 and 1 is needed")
        self.limit = 10**digits
        self.noise = noise

    def reset(self, seed: int) -> str:
        """Draw the two numbers from the task's seed."""
        task = random.Random(seed)
        a, b = task.randrange(self.limit), task.randrange(self.limit)
        self.total = a + b
        return f"{a}+{b}="

    def step(self, action: str) -> Step:
        """Reward the exact sum."""
        return Step(reward=float(action.strip() == str(self.total)), terminated=True)

    def demonstrate(self) -> str:
        """The sum, or a random number."""
        right = self.rng.random() >= self.noise
        return str(self.total if right else self.rng.randrange(2 * self.limit - 1))
