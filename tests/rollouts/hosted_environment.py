"""Environments for processes of their own; `test_environment_processes.py` loads them by path, as a user's."""

import asyncio
import os
import signal
import sys
import threading
from pathlib import Path

from tinker_actors.data import ToolList
from tinker_actors.environments import Environment, Step

FINE, KILLS, HANGS, RAISES, BLOCKS = range(5)


class Hosted(Environment):
    """Two turns. Says where it runs; notes every close in a file."""

    isolation = "process"

    def __init__(self, notes: str = ""):
        self.notes, self.resets = notes, 0

    def reset(self, seed):
        self.resets += 1
        self.trouble, self.turn = seed % 10, 0
        return f"task {seed}"

    def step(self, action):
        self.turn += 1
        if self.turn == 1:
            return Step(observation=f"{action}?")
        if self.trouble == KILLS:
            sys.stderr.write("last words\n")
            sys.stderr.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        if self.trouble == HANGS:
            threading.Event().wait()
        if self.trouble == RAISES:
            raise ValueError("no such move")
        return Step(reward=self.rng.random(), terminated=True, metrics={"pid": os.getpid(), "resets": self.resets})

    def close(self):
        if self.notes:
            with Path(self.notes).open("a") as file:
                file.write(f"{os.getpid()}\n")


class Reused(Hosted):
    """Its instances play one episode after another."""

    reusable = True


class Together(Hosted):
    """Resets many at once; a batch's size is the first thing that it says."""

    @staticmethod
    def reset_many(environments, seeds):
        observations = []
        for environment, seed in zip(environments, seeds, strict=True):
            observation = environment.reset(seed)
            observations.append(ValueError("no such task") if seed == 9 else f"{len(seeds)} {observation}")
        return observations


class Blocking(Hosted):
    """Its methods are `async`, and one of them never lets the event loop go on."""

    async def step(self, action):
        if self.trouble == BLOCKS:
            threading.Event().wait()
        return super().step(action)


class Gated(Hosted):
    """The first episode of all says through a pipe that it has begun, and then waits."""

    def reset(self, seed):
        with Path(self.notes).open("a") as file:
            file.write("open\n")
        return super().reset(seed)

    async def step(self, action):
        gate = Path(self.notes).with_name("begun")
        try:
            gate.rename(gate.with_name("claimed"))
        except FileNotFoundError:
            return super().step(action)
        gate.with_name("claimed").write_text("x")
        return await asyncio.Event().wait()

    def close(self):
        with Path(self.notes).open("a") as file:
            file.write("close\n")


class Told(Hosted):
    """Tells of a tool."""

    def tool_list(self):
        return ToolList(schemas=({"name": f"t{self.resets}"},), described="")
