"""A bandit: pull one of several arms, whose chances to pay never change; one turn."""

from __future__ import annotations

from tinker_actors.environments import Environment, Step
from tinker_actors.errors import ConfigError

NAMES = "abcdefghijklmnopqrstuvwxyz"


class Bandit(Environment):
    """The prompt is always the same, so there is nothing to learn but which arm pays best.

    Arm i of n pays 1 with chance `lowest` + (`highest` - `lowest`) * i / (n - 1); the last one is the best.
    """

    max_turns = 1

    def __init__(self, arms: int = 5, lowest: float = 0.1, highest: float = 0.9) -> None:
        if not 2 <= arms <= len(NAMES):
            raise ConfigError(f"arms is {arms}; 2 to {len(NAMES)} are needed")
        if not 0 <= lowest <= highest <= 1:
            raise ConfigError(f"lowest is {lowest} and highest is {highest}; 0 <= lowest <= highest <= 1 is needed")
        self.chances = {arm: lowest + (highest - lowest) * place / (arms - 1) for place, arm in enumerate(NAMES[:arms])}

    def reset(self, seed: int) -> str:
        """The same for every seed: a bandit has no state."""
        return f"pull a-{max(self.chances)}"

    def step(self, action: str) -> Step:
        """Pay by the episode's luck; what is no arm pays nothing."""
        arm = action.strip()
        chance = self.chances.get(arm)
        metrics = {"invalid": float(chance is None), "best": float(arm == max(self.chances))}
        return Step(reward=float(self.rng.random() < (chance or 0.0)), terminated=True, metrics=metrics)

    def demonstrate(self) -> str:
        """Any arm: the form of an answer, not the answer."""
        return self.rng.choice(list(self.chances))
