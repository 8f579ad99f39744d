"""The coordinator of a run: the global barrier as an actor, at which the policies' loops of any process arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from tinker_actors.actors import Actor, ActorRef, Restarted, concurrent
from tinker_actors.coordinator.phases import Phase, PhaseBarrier, PhaseState


class RunCoordinator(Actor):
    """Nobody updates until all rollouts are in; nobody rolls out until all updates are published.

        coordinator = await mesh.spawn(RunCoordinator, {"a": trainer_a, "b": trainer_b}, node=0)
        # for each policy, wherever its loop runs:
        ...                                                  # collect its episodes
        await coordinator.finish("a", Phase.ROLLOUT, 0)
        ...                                                  # update and publish
        await coordinator.finish("a", Phase.UPDATE, 0)

    When a policy's actor ends, its process dies, or a waiting loop is cancelled, every waiter wakes at once with a
    `PhaseBrokenError` that says why. The run then goes on without that policy (`leave`) or has it back, and begins the
    phase again (`mend`).

    Args:
        parties: The policies, each with the ref of an actor without which it can't go on, such as its trainer, or None.
        timeout: Seconds that the first to finish a phase waits for the last; None for no bound.
        step: The first step.
    """

    def __init__(self, parties: Mapping[str, ActorRef | None], *, timeout: float | None = None, step: int = 0) -> None:
        self._barrier = PhaseBarrier(list(parties), timeout=timeout, step=step)
        self._refs = {policy: ref for policy, ref in parties.items() if ref is not None}
        self._watchers: dict[str, asyncio.Task[None]] = {}

    async def on_start(self) -> None:
        """Begin to watch the parties."""
        for policy, ref in self._refs.items():
            self._watchers[policy] = asyncio.create_task(self._watch(policy, ref))

    async def on_stop(self) -> None:
        """Wake all who wait."""
        self._barrier.break_("the run's coordinator was stopped")
        for watcher in self._watchers.values():
            watcher.cancel()
        await asyncio.gather(*self._watchers.values(), return_exceptions=True)

    @concurrent
    async def finish(self, policy: str, phase: Phase, step: int) -> None:
        """See `PhaseBarrier.finish`. A loop whose process dies while it waits breaks the barrier, too."""
        await self._barrier.finish(policy, phase, step)

    @concurrent
    async def break_(self, cause: str) -> None:
        """See `PhaseBarrier.break_`."""
        self._barrier.break_(cause)

    @concurrent
    async def leave(self, policy: str) -> None:
        """See `PhaseBarrier.leave`."""
        self._barrier.leave(policy)
        if (watcher := self._watchers.pop(policy, None)) is not None:
            watcher.cancel()

    @concurrent
    async def mend(self) -> None:
        """See `PhaseBarrier.mend`."""
        self._barrier.mend()

    @concurrent
    async def state(self) -> PhaseState:
        """Where the run stands."""
        return self._barrier.state

    async def _watch(self, policy: str, ref: ActorRef) -> None:
        """Break the barrier when a party ends, or fails while others wait for it."""
        async for event in self.mesh.watch(ref):
            back = isinstance(event, Restarted)
            if back and not self._barrier.is_awaited:
                continue
            what = "failed" if back else "was stopped" if event.reason is None else "died"
            cause = f"{ref.address.name} of policy {policy!r} {what}"
            if event.reason is not None:
                cause += f": {type(event.reason).__name__}: {event.reason}"
            reason = event.reason if isinstance(event.reason, Exception) else None
            self._barrier.break_(cause.split("\n", 1)[0], reason)
