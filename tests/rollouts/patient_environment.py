"""An environment that never goes on."""

import asyncio

from tinker_actors.environments import Environment


class Patient(Environment):
    async def reset(self, seed):
        return await asyncio.get_running_loop().create_future()

    def step(self, action):
        raise AssertionError
