"""Passes of several models over one base model, taken together where they are ready at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from tinker_actors.data import Datum
from tinker_actors.errors import ActorError, TinkerActorsError
from tinker_actors.gateway.tinker.executor import SHARED_TOKENS
from tinker_actors.training import Trainer
from tinker_actors.training.contract import ForwardBackwardResult, LossConfig


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Waiting:
    """A pass that waits for the trainer."""

    model: str
    data: Sequence[Datum]
    loss: LossConfig
    found: asyncio.Future[ForwardBackwardResult]


class JointPasses:
    """Gives passes to a trainer, small ones of several models in one message; each gets the bits that it gets alone.

    Args:
        trainer: The trainer of their base model.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._waiting: list[_Waiting] = []
        self._running: asyncio.Task[None] | None = None

    async def forward_backward(self, model: str, data: Sequence[Datum], loss: LossConfig) -> ForwardBackwardResult:
        """As `Trainer.forward_backward`, with the log-probs of every target; a model has one pass under way at most."""
        found: asyncio.Future[ForwardBackwardResult] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(model=model, data=data, loss=loss, found=found))
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return await found

    async def _run(self) -> None:
        await asyncio.sleep(0)  # whoever is ready at the same time comes along
        while together := self._next():
            await self._pass(together)
        self._running = None

    def _next(self) -> list[_Waiting]:
        """The pass that came first, and others as long as all of them are small."""
        together: list[_Waiting] = []
        tokens = 0
        for waiting in [waiting for waiting in self._waiting if not waiting.found.done()]:
            size = sum(map(len, waiting.data))
            if not together or tokens + size <= SHARED_TOKENS:
                together.append(waiting)
                tokens += size
        self._waiting = [waiting for waiting in self._waiting if waiting not in together and not waiting.found.done()]
        return together

    async def _pass(self, together: Sequence[_Waiting]) -> None:
        batches = [(waiting.model, waiting.data, waiting.loss) for waiting in together]
        try:
            results = await self._trainer.forward_backward_many(batches, every_target=True)
        except Exception as error:  # the boundary to the trainer: what it raises goes to whoever waits
            if len(together) > 1 and isinstance(error, TinkerActorsError) and not isinstance(error, ActorError):
                for waiting in together:  # nothing was computed for anyone; whose fault it is shows one by one
                    await self._pass([waiting])
                return
            for waiting in together:
                if not waiting.found.done():
                    waiting.found.set_exception(error)
            return
        for waiting, result in zip(together, results, strict=True):
            if not waiting.found.done():
                waiting.found.set_result(result)
