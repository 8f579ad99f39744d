"""The trainer actor: the training engine behind a mailbox, on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import torch

from tinker_actors.actors import Actor, concurrent
from tinker_actors.data import Datum
from tinker_actors.errors import ConfigError, PolicyError
from tinker_actors.policies import PolicySpec, Snapshot
from tinker_actors.training.contract import (
    AdamParams,
    ForwardBackwardResult,
    LossConfig,
    OptimStepResult,
    PolicyInfo,
)
from tinker_actors.training.counts import Counts, TrainerStats
from tinker_actors.training.custom_loss import SUPERVISED_PASS
from tinker_actors.training.engine import TrainingEngine
from tinker_actors.training.residency import Residency

T = TypeVar("T")


class _AbandonedError(PolicyError):
    """The asker gave up; raised between micro-batches."""


class Trainer(Actor):
    """Trains many policies over one base model; see `TrainingEngine` for what each message does and raises.

    Messages are served one at a time, on one thread, so the event loop stays free. When the asker of a
    `forward_backward` or `backward` gives up, the pass ends at the next micro-batch and adds no gradient; any other
    message that has begun is finished.

    Args:
        base_model: The base model's name in the catalogue.
        store: Folder of the snapshot store.
        dtype: The base's dtype; adapters and fully trained weights are fp32.
        device: Where all weights are, and what computes: `cpu`, `cuda` or a GPU by its number, `cuda:1`.
        threads: Threads that torch uses for this trainer's work (not for others' in the process); None is 1 for models
            of less than ten million parameters, else torch's own choice.
        resident: How many policies may be in memory; the others' state lies on disk until they are used. None for all.

    Raises:
        ConfigError: `threads` is not positive.
    """

    def __init__(
        self,
        *,
        base_model: str,
        store: str,
        dtype: str = "float32",
        device: str = "cpu",
        threads: int | None = None,
        resident: Residency | None = None,
    ) -> None:
        if threads is not None and threads < 1:
            raise ConfigError(f"threads is {threads}; an integer of at least 1 is needed")
        self._open = partial(TrainingEngine, base_model, store, dtype, device, resident=resident)
        self._threads = threads
        self._counts = Counts()
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="trainer")

    async def on_start(self) -> None:
        """Load the base model."""
        self._engine = await self._run(self._open)
        if (threads := self._engine.base.threads(self._threads)) is not None:
            await self._run(_compute_with, threads)

    async def on_stop(self) -> None:
        """End the thread, and free what idle policies hold on disk."""
        await self._run(self._engine.close)
        self._executor.shutdown(wait=False)

    async def create(self, spec: PolicySpec) -> str:
        """Make a policy and return its id."""
        return await self._run(self._engine.create, spec)

    async def delete(self, policy: str) -> None:
        """End a policy's training and free its state; what it stored stays."""
        await self._run(self._engine.delete, policy)

    @concurrent
    async def context_length(self) -> int:
        """Longest sequence in tokens that the base model was made for."""
        return self._engine.base.context_length

    @concurrent
    async def stats(self) -> TrainerStats:
        """What it has done and how it stands, also while it computes."""
        return self._counts.stats(self._engine.size)

    async def policies(self) -> tuple[PolicyInfo, ...]:
        """All policies in training."""
        return await self._run(self._engine.policies)

    async def forward_backward(
        self, policy: str, datums: Sequence[Datum], loss: LossConfig, *, every_target: bool = False
    ) -> ForwardBackwardResult:
        """Add the gradient of the summed loss to the policy's pending gradients; `every_target` as of `forward`."""
        (result,) = await self.forward_backward_many([(policy, datums, loss)], every_target=every_target)
        return result

    async def forward_backward_many(
        self, batches: Sequence[tuple[str, Sequence[Datum], LossConfig]], *, every_target: bool = False
    ) -> tuple[ForwardBackwardResult, ...]:
        """As `forward_backward` for several policies, once each, in passes over the base that they share."""
        names = ", ".join(repr(policy) for policy, _, _ in batches)
        results = await self._passes(
            partial(self._engine.forward_backward_many, batches, every_target=every_target), names
        )
        for _, datums, _ in batches:
            self._counts.batch(datums)
        return results

    async def backward(
        self,
        policy: str,
        datums: Sequence[Datum],
        gradients: Sequence[Sequence[float]],
        passes: LossConfig = SUPERVISED_PASS,
    ) -> None:
        """Add the gradient of a loss, given its gradient by each log-prob; see `forward_backward_custom`."""
        await self._passes(partial(self._engine.backward, policy, datums, gradients, passes), repr(policy))
        self._counts.batch(datums)

    async def forward(
        self, policy: str, datums: Sequence[Datum], loss: LossConfig, *, every_target: bool = False
    ) -> ForwardBackwardResult:
        """Loss and log-probs without gradients; with `every_target` log-probs of untrained targets too."""
        result = await self._run(partial(self._engine.forward, policy, datums, loss, every_target=every_target))
        self._counts.batch(datums)
        return result

    async def optim_step(self, policy: str, params: AdamParams) -> OptimStepResult:
        """Apply the pending gradients with the optimizer that the settings are for, and drop them."""
        result = await self._run(self._engine.optim_step, policy, params)
        self._counts.optimizer_steps += 1
        return result

    async def publish(self, policy: str, *, ttl: float | None = None, handle: str | None = None) -> Snapshot:
        """Store the present weights as a snapshot of the policy, which may expire after `ttl` seconds.

        Its handle is one that the store's `reserve` gave, or else the next.
        """
        snapshot = await self._run(partial(self._engine.publish, policy, ttl=ttl, handle=handle))
        self._counts.published += 1
        return snapshot

    async def save(self, policy: str, name: str) -> str:
        """Store the whole training state under a name and return its handle."""
        return await self._run(self._engine.save, policy, name)

    async def load(
        self,
        handle: str,
        *,
        policy: str | None = None,
        optimizer: bool = True,
        store: str | None = None,
        replacing: bool = False,
    ) -> str:
        """Restore a checkpoint, as the policy that was saved or as another one, and return the policy's id."""
        options = {"policy": policy, "optimizer": optimizer, "store": store, "replacing": replacing}
        return await self._run(partial(self._engine.load, handle, **options))

    async def fork(self, handle: str, *, policy: str | None = None, store: str | None = None) -> str:
        """Make a new policy that starts cold from a snapshot's or checkpoint's weights, and return its id."""
        return await self._run(partial(self._engine.fork, handle, policy=policy, store=store))

    async def export_base(self, policy: str, path: str) -> str:
        """Write the merged weights as a transformers directory with tokenizer and return its absolute path."""
        return await self._run(self._engine.export_base, policy, path)

    async def _passes(self, work: Callable[..., T], policies: str) -> T:
        """Do work that takes `proceed`; when the asker gives up it ends between two micro-batches."""
        abandoned = threading.Event()

        def proceed() -> None:
            if abandoned.is_set():
                raise _AbandonedError(f"forward_backward of {policies} was abandoned by its asker")

        return await self._run(partial(work, proceed=proceed), abandon=abandoned.set)

    async def _run(self, work: Callable[..., T], *arguments: object, abandon: Callable[[], None] | None = None) -> T:
        """Do blocking work on the actor's thread; when cancelled, return only once the thread is free again."""
        future = asyncio.get_running_loop().run_in_executor(
            self._executor, self._counts.timed, partial(work, *arguments)
        )
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if abandon is not None:
                abandon()
            await asyncio.wait([future])
            if not future.cancelled():
                future.exception()  # the asker is gone: nobody else will look at it
            raise


def _compute_with(threads: int) -> None:
    """Set the number of threads that torch uses for work that this thread starts."""
    torch.get_num_threads()  # a thread's first use of torch resets the number, so that comes first
    torch.set_num_threads(threads)
