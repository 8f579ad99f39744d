"""A signalling game: two seats with different roles that win or lose together.

Lewis 1969, "Convention". Nothing says what a signal means: speaker and listener have to agree on it by playing.
"""

from __future__ import annotations

import random

from tinker_actors.environments import Environment, Step, TurnOrder
from tinker_actors.errors import ConfigError

OBJECTS = ("red", "blue", "green", "gold", "pink", "grey", "black", "white")
SIGNALS = "abcdefgh"
SPEAKER, LISTENER = "speaker", "listener"


class Signalling(Environment):
    """The speaker sees an object and says a letter; the listener hears the letter and names an object.

    Both earn 1 if it is the speaker's object, else 0. The object comes from the task's seed.

    Args:
        objects: How many there are.
        signals: How many letters there are.
        skill: The share of demonstrations that keep to a convention, the first letter for the first object and so on;
            the others are any letter and any object. With 0 nothing tells the seats what a letter means.
    """

    seats = (SPEAKER, LISTENER)
    turn_order = TurnOrder.TURN_BASED
    max_turns = 2

    def __init__(self, objects: int = 4, signals: int = 4, skill: float = 0.0) -> None:
        for name, count, most in (("objects", objects, len(OBJECTS)), ("signals", signals, len(SIGNALS))):
            if not 2 <= count <= most:
                raise ConfigError(f"{name} is {count}; 2 to {most} are needed")
        if not 0 <= skill <= 1:
            raise ConfigError(f"skill is {skill}; a share from 0 to 1 is needed")
        self.skill = skill
        self.objects, self.signals = OBJECTS[:objects], tuple(SIGNALS[:signals])

    def reset(self, seed: int) -> dict[str, str]:
        """Choose the object."""
        self.object = random.Random(seed).choice(self.objects)
        return {SPEAKER: f"say {self.object}"}

    def step(self, actions: dict[str, str]) -> Step:
        """Pass the letter on, or compare the name. A word that isn't one of the game's ends it for both."""
        ((seat, action),) = actions.items()
        said = action.strip()
        if said not in (self.signals if seat == SPEAKER else self.objects):
            return self._end(0.0, invalid=1.0)
        if seat == SPEAKER:
            self.heard = said
            return Step(observation={LISTENER: f"hear {said}"})
        return self._end(float(said == self.object), invalid=0.0)

    def demonstrate(self, seat: str) -> str:
        """With probability `skill` as the convention has it, else any letter or any object."""
        said, meant = (self.signals, self.objects) if seat == SPEAKER else (self.objects, self.signals)
        if self.rng.random() < self.skill:
            shown = self.object if seat == SPEAKER else self.heard
            return said[meant.index(shown) % len(said)]
        return self.rng.choice(said)

    def _end(self, reward: float, *, invalid: float) -> Step:
        return Step(reward=dict.fromkeys(self.seats, reward), terminated=True, metrics={"invalid": invalid})
