"""Passes of several policies over one base model that are ready at the same time, in one message to their trainer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from tinker_actors.data import Datum
from tinker_actors.errors import ActorError, TinkerActorsError
from tinker_actors.training.contract import ForwardBackwardResult, LossConfig
from tinker_actors.training.trainer import Trainer

SHARED_TOKENS = 4096
"""Positions up to which batches of several policies are put together; larger ones gain nothing from company."""

P = TypeVar("P")


def together(waiting: Sequence[P], tokens: Callable[[P], int]) -> list[P]:
    """The pass that came first, and others as long as all of them are small.

    Args:
        waiting: The passes, the one that came first first.
        tokens: How many positions one has.
    """
    joint: list[P] = []
    total = 0
    for one in waiting:
        if not joint or total + tokens(one) <= SHARED_TOKENS:
            joint.append(one)
            total += tokens(one)
    return joint


async def passed_together(
    trainer: Trainer, batches: Sequence[tuple[str, Sequence[Datum], LossConfig]]
) -> Sequence[ForwardBackwardResult | Exception]:
    """What `Trainer.forward_backward_many` finds or raises for each of several policies' batches."""
    try:
        return await trainer.forward_backward_many(batches, every_target=True)
    except Exception as error:  # the boundary to the trainer: what it raises goes to whoever waits
        if len(batches) > 1 and isinstance(error, TinkerActorsError) and not isinstance(error, ActorError):
            # nothing was computed for anyone; whose fault it is shows one by one
            return [found for batch in batches for found in await passed_together(trainer, [batch])]
        return [error] * len(batches)
