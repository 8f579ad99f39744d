"""Environments, agents and samplers that can be held at every point of an episode; loaded in child processes too."""

import asyncio
import os
from collections import defaultdict

from tinker_actors.actors import Actor, ActorFailure, concurrent
from tinker_actors.data import Message, Task
from tinker_actors.environments import Agent, Environment, Forfeit, Step

TASK = Task(environment="game", seed=4)


class Points(Actor):
    """Whoever comes to a point that is held waits there until it is released, and may be told to raise."""

    def __init__(self, held=()):
        self.held = set(held)
        self.reached = defaultdict(asyncio.Event)
        self.released = defaultdict(asyncio.Event)
        self.orders = {}

    @concurrent
    async def come(self, point):
        self.reached[point].set()
        if point in self.held:
            await self.released[point].wait()
        return self.orders.get(point)

    @concurrent
    async def until(self, point):
        await self.reached[point].wait()

    @concurrent
    async def release(self, order=None, points=None):
        for point in self.held if points is None else points:
            self.orders[point] = order
            self.released[point].set()

    @concurrent
    async def was_reached(self, point):
        return self.reached[point].is_set()


async def come(points, point):
    order = await points.come(point)
    if order == "raise":
        raise RuntimeError("shot")
    if order == "cancel":
        raise asyncio.CancelledError


class Mortal(Actor):
    """Can be made to end by an exception, and says where it lives."""

    @concurrent
    async def die(self):
        raise ActorFailure("shot")

    @concurrent
    async def pid(self):
        return os.getpid()


class HeldGame(Environment):
    """x, o, x and o act; x wins half a point."""

    seats = ("x", "o")
    forfeit_rule = Forfeit.LOSS

    def __init__(self, points, id):
        self.points, self.id, self.moves = points, id, 0

    async def reset(self, seed):
        await come(self.points, f"{self.id}/reset")
        return {"x": "go"}

    async def step(self, actions):
        self.moves += 1
        await come(self.points, f"{self.id}/step{self.moves}")
        if self.moves == 4:
            return Step(reward={"x": 0.5, "o": -0.5}, terminated=True)
        return Step(observation={"xo"[self.moves % 2]: "go"})

    async def close(self):
        await come(self.points, f"{self.id}/close")


class HeldAgent(Agent, Mortal):
    def __init__(self, points, id, seat):
        self.points, self.where, self.turn = points, f"{id}/{seat}", 0

    async def act(self, messages):
        self.turn += 1
        await come(self.points, f"{self.where}{self.turn}")
        return "move"


class HeldSampler(Mortal):
    """What a policy's agent asks."""

    def __init__(self, points, id):
        self.points, self.id, self.asked = points, id, 0

    @concurrent
    async def sample(self, request):
        self.asked += 1
        await come(self.points, f"{self.id}/x{self.asked}")
        return "move"


class Asks(Agent):
    """Plays what a sampler says."""

    policy, trainable = "p", True

    def __init__(self, sampler):
        self.sampler = sampler

    async def act(self, messages: tuple[Message, ...]):
        return await self.sampler.sample(messages[-1].content)
