"""Guess a secret number in a few turns; the answers are `higher` and `lower`."""

from __future__ import annotations

from tinker_actors.environments import Environment, Step
from tinker_actors.errors import ConfigError


class NumberGuess(Environment):
    """A number between `low` and `high`, `guesses` attempts. Every episode of a group has a secret of its own.

    `skill` is the share of demonstrated guesses that halve what is still possible; the others are random.
    """

    def __init__(self, low: int = 1, high: int = 7, guesses: int = 3, skill: float = 0.3) -> None:
        if low > high:
            raise ConfigError(f"low is {low} and high is {high}; low may not be above high")
        if guesses < 1:
            raise ConfigError(f"guesses is {guesses}; at least 1 is needed")
        if not 0 <= skill <= 1:
            raise ConfigError(f"skill is {skill}; a share from 0 to 1 is needed")
        self.low, self.high, self.skill = low, high, skill
        self.max_turns = guesses

    def reset(self, seed: int) -> str:
        """Draw the secret: luck, so that a policy can't do better than search for it."""
        self.secret = self.rng.randint(self.low, self.high)
        self.left = self.max_turns
        self.bounds = (self.low, self.high)
        return f"guess {self.low}-{self.high}"

    def step(self, action: str) -> Step:
        """Compare the guess; what isn't a number in range costs 0.5 and ends the episode."""
        guess = self._number(action)
        if guess is None:
            return Step(reward=-0.5, terminated=True, metrics={"invalid": 1.0})
        if guess == self.secret:
            return Step(reward=1.0, terminated=True, metrics={"invalid": 0.0})
        self.left -= 1
        if self.left == 0:
            return Step(terminated=True, metrics={"invalid": 0.0})
        lowest, highest = self.bounds
        higher = guess < self.secret
        self.bounds = (max(lowest, guess + 1), highest) if higher else (lowest, min(highest, guess - 1))
        return Step(observation="higher" if higher else "lower")

    def demonstrate(self) -> str:
        """With probability `skill` the middle of what is still possible, else any number."""
        if self.rng.random() < self.skill:
            return str(sum(self.bounds) // 2)
        return str(self.rng.randint(self.low, self.high))

    def _number(self, text: str) -> int | None:
        digits = text.strip()
        if not (digits.isascii() and digits.removeprefix("-").isdigit()):
            return None
        try:
            number = int(digits)
        except ValueError:  # more digits than Python reads
            return None
        return number if self.low <= number <= self.high else None
