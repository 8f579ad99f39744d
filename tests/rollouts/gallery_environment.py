"""Two turns with an image each: first one of 4 positions, then one of 6, as a tool would return it."""

import sys

import numpy as np

from tinker_actors.data import Message
from tinker_actors.environments import Environment, Step


class Gallery(Environment):
    max_turns = 2

    def reset(self, seed):
        self.turn = 0
        self.pixels = np.random.default_rng(seed).integers(0, 256, (48, 48, 3), dtype=np.uint8)
        return Message.of(self.pixels[:32, :32], "look")

    def step(self, action):
        self.turn += 1
        if self.turn == 1:
            return Step(observation=Message.of("then ", self.pixels[:32], role="tool"), reward=1.0)
        heavy = {"torch", "transformers"} & set(sys.modules)
        return Step(terminated=True, metrics={"heavy": float(len(heavy)), "evaluating": float(self.evaluating)})
