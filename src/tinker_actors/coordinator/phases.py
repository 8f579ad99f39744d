"""The global barrier between the rollout and the update phase, over all policies that learn in a run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from tinker_actors.errors import ConfigError, RunError


class Phase(Enum):
    """What a run is doing."""

    ROLLOUT = "rollout"
    """Episodes are collected from published snapshots."""
    UPDATE = "update"
    """Policies are updated and their new snapshots published."""


class PhaseBrokenError(RunError):
    """The barrier broke: a party died, timed out or was cancelled. Every waiter gets this with the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseState:
    """Where the barrier stands.

    Attributes:
        step: Counts from 0.
        phase: The phase that is going on.
        waiting_for: The policies that have not finished it.
        broken: Why the barrier broke, if it did.
    """

    step: int
    phase: Phase
    waiting_for: tuple[str, ...]
    broken: str | None


class PhaseBarrier:
    """Nobody updates until all rollouts are in; nobody rolls out until all updates are published.

        barrier = PhaseBarrier(["a", "b"], timeout=600.0)
        # for each policy, in tasks of their own:
        ...                                              # collect its episodes
        await barrier.finish("a", Phase.ROLLOUT, step=0)
        ...                                              # update and publish
        await barrier.finish("a", Phase.UPDATE, step=0)

    Once broken it stays so: what a phase is worth with a party missing is for the run to decide.

    Args:
        policies: The parties. Frozen policies take no part.
        timeout: Seconds that the first to finish waits for the last; None for no bound.
    """

    def __init__(self, policies: Sequence[str], *, timeout: float | None = None) -> None:
        if not policies or len(set(policies)) != len(policies):
            raise ConfigError(f"a phase barrier is given the policies {list(policies)}; one or more, each once, needed")
        self._policies = tuple(policies)
        self._timeout = timeout
        self._step = 0
        self._phase = Phase.ROLLOUT
        self._waiting_for = set(policies)
        self._opened: asyncio.Future[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._broken: PhaseBrokenError | None = None

    @property
    def state(self) -> PhaseState:
        """Where the barrier stands."""
        return PhaseState(
            step=self._step,
            phase=self._phase,
            waiting_for=tuple(policy for policy in self._policies if policy in self._waiting_for),
            broken=None if self._broken is None else str(self._broken),
        )

    async def finish(self, policy: str, phase: Phase, step: int) -> None:
        """Say that a policy is through with a phase; returns once all are. A waiter that is cancelled breaks it.

        Raises:
            PhaseBrokenError: The barrier broke, now or before; says why.
            RunError: This isn't the phase that is going on, or the policy has finished it already.
        """
        self._check(policy, phase, step)
        self._waiting_for.discard(policy)
        if not self._waiting_for:
            self._open()
            return
        if self._opened is None:
            self._opened = asyncio.get_running_loop().create_future()
            self._opened.add_done_callback(_retrieve)
            if self._timeout is not None:
                self._alarm = asyncio.get_running_loop().call_later(self._timeout, self._overdue)
        try:
            # One future for all: shielded, so that one waiter's cancellation reaches the others as a cause.
            await asyncio.shield(self._opened)
        except asyncio.CancelledError:
            self.break_(f"policy {policy!r} was cancelled while it waited")
            raise

    def break_(self, cause: str) -> None:
        """Break the barrier: every present and later waiter gets the cause. The first cause stays."""
        if self._broken is not None:
            return
        self._broken = PhaseBrokenError(f"{self._phase.value} phase of step {self._step}: {cause}")
        self._silence()
        if self._opened is not None and not self._opened.done():
            self._opened.set_exception(self._broken)

    def _open(self) -> None:
        self._silence()
        opened, self._opened = self._opened, None
        self._waiting_for = set(self._policies)
        if self._phase is Phase.UPDATE:
            self._step += 1
        self._phase = Phase.UPDATE if self._phase is Phase.ROLLOUT else Phase.ROLLOUT
        if opened is not None and not opened.done():
            opened.set_result(None)

    def _overdue(self) -> None:
        late = [policy for policy in self._policies if policy in self._waiting_for]
        self.break_(f"policies {late} did not finish within {self._timeout:g} s of the first")

    def _silence(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _check(self, policy: str, phase: Phase, step: int) -> None:
        if self._broken is not None:
            raise PhaseBrokenError(str(self._broken))
        if policy not in self._policies:
            raise RunError(f"policy {policy!r} is not a party of the phases; those are {list(self._policies)}")
        if (phase, step) != (self._phase, self._step):
            raise RunError(
                f"policy {policy!r} finished the {phase.value} phase of step {step}, but the {self._phase.value} "
                f"phase of step {self._step} is going on"
            )
        if policy not in self._waiting_for:
            raise RunError(f"policy {policy!r} finished the {phase.value} phase of step {step} twice")


def _retrieve(future: asyncio.Future[None]) -> None:
    """Look at the outcome, so that a break that nobody waits for is not reported as forgotten."""
    if not future.cancelled():
        future.exception()
