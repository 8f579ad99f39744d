"""Repeat the last word of a list; one turn. Prompts are fresh: far more lists than any run sees."""

from __future__ import annotations

import random
from pathlib import Path

from tinker_actors.environments import Environment, Step
from tinker_actors.errors import ConfigError

WORDS = tuple(Path(__file__).with_name("words.txt").read_text(encoding="utf-8").split())


class LastWord(Environment):
    """`Words: apple, river, stone. Last word?`; reward 1 if the reply's first word is the last of the list."""

    max_turns = 1

    def __init__(self, shortest: int = 3, longest: int = 5) -> None:
        if not 1 <= shortest <= longest <= len(WORDS):
            raise ConfigError(
                f"shortest is {shortest} and longest is {longest}; 1 <= shortest <= longest <= {len(WORDS)} is needed"
            )
        self.shortest, self.longest = shortest, longest

    def reset(self, seed: int) -> str:
        """Draw the list from the task's seed."""
        task = random.Random(seed)
        self.words = task.sample(WORDS, task.randint(self.shortest, self.longest))
        return f"Words: {', '.join(self.words)}. Last word?"

    def step(self, action: str) -> Step:
        """Compare the reply's first word, without its case and punctuation."""
        first = next(iter(action.split()), "").strip(".,;:!?\"'*`").lower()
        return Step(reward=float(first == self.words[-1]), terminated=True)

    def demonstrate(self) -> str:
        """Any word of the list: it shows the form of an answer, not the answer."""
        return self.rng.choice(self.words)
