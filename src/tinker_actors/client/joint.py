"""Passes of several models over one base model, taken together where they are ready at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from tinker_actors.data import Datum
from tinker_actors.training import Trainer
from tinker_actors.training.contract import ForwardBackwardResult, LossConfig
from tinker_actors.training.joint import passed_together, together


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
        while joint := self._next():
            await self._pass(joint)
        self._running = None

    def _next(self) -> list[_Waiting]:
        waiting = [waiting for waiting in self._waiting if not waiting.found.done()]
        joint = together(waiting, lambda waiting: sum(map(len, waiting.data)))
        self._waiting = [waiting for waiting in waiting if waiting not in joint]
        return joint

    async def _pass(self, joint: Sequence[_Waiting]) -> None:
        batches = [(waiting.model, waiting.data, waiting.loss) for waiting in joint]
        for waiting, found in zip(joint, await passed_together(self._trainer, batches), strict=True):
            if waiting.found.done():
                continue
            if isinstance(found, Exception):
                waiting.found.set_exception(found)
            else:
                waiting.found.set_result(found)
