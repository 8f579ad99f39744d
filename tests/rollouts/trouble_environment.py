"""An environment whose tasks say what goes wrong; `test_*.py` here load it by path, as a user's."""

import asyncio
import os
import signal
import sys

from tinker_actors.environments import Environment, Step

FINE, SLEEPS, RAISES, KILLS, BLOCKS = range(5)


class Trouble(Environment):
    """Two turns; the reward of the second is 1 if this episode's luck says so."""

    def reset(self, seed):
        self.trouble = seed % 10
        self.turn = 0
        return f"task {seed}"

    async def step(self, action):
        self.turn += 1
        if self.trouble == SLEEPS:
            await asyncio.sleep(3600)
        if self.trouble == RAISES and self.turn == 2:
            raise ValueError("no such move")
        if self.trouble == KILLS:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.turn == 1:
            return Step(observation="and?")
        heavy = {"torch", "transformers"} & set(sys.modules)
        return Step(reward=float(self.rng.random() < 0.5), terminated=True, metrics={"heavy": len(heavy)})
