"""An environment of two seats whose first task kills its process once at the point that its seed names."""

import asyncio
import os
import signal
from pathlib import Path

from tinker_actors.environments import Environment, Step

POINTS = ("reset", "act", "step", "between", "close")
MARKS = os.environ.get("DEADLY_MARKS", "")


class Deadly(Environment):
    seats = ("x", "o")

    def __init__(self):
        self.point = None

    def kill(self, point):
        """Kill the process, if this is the point at which the task does and no process died there before."""
        if self.point != point:
            return
        mark = Path(MARKS) / point
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    async def reset(self, seed):
        self.point = POINTS[seed] if seed < len(POINTS) else None
        self.moves = 0
        self.kill("reset")
        if self.point == "act":  # while the seat acts, as the loop comes to it
            asyncio.get_running_loop().call_soon(self.kill, "act")
        return {"x": "go"}

    async def step(self, actions):
        self.moves += 1
        self.kill("step")
        if self.point == "between":
            asyncio.get_running_loop().call_soon(self.kill, "between")
        await asyncio.sleep(0)
        if self.moves == 2:
            return Step(reward={"x": 1.0, "o": -1.0}, terminated=True)
        return Step(observation={"o": "go"})

    def close(self):
        self.kill("close")


async def move(messages):
    await asyncio.sleep(0)
    return "move"
