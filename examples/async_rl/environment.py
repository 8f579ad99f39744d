"""number_guess whose referee is somewhere else: every answer takes a while to come, as from a tool or a service."""

from __future__ import annotations

import asyncio

from tinker_actors.environments import Step, load_environment

NumberGuess = load_environment("number_guess").environment


class DistantGuess(NumberGuess):
    """`number_guess` with answers that take `latency` seconds, give or take a quarter; waiting uses no processor."""

    def __init__(self, latency: float = 0.4, **options: float) -> None:
        super().__init__(**options)
        self.latency = latency

    async def step(self, action: str) -> Step:
        """Wait for the answer to a guess."""
        await asyncio.sleep(self.latency * self.rng.uniform(0.75, 1.25))
        return super().step(action)
