"""The global barrier between the rollout and the update phase, over all policies that learn in a run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from tinker_actors.actors.errors import BarrierBrokenError
from tinker_actors.actors.rendezvous import Rendezvous
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

    Once broken it stays so until `mend`: what a phase is worth with a party missing is for the run to decide.
    `docs/coordinator.md` has its states; `RunCoordinator` is the same as an actor.

    Args:
        policies: The parties. Frozen policies take no part.
        timeout: Seconds that the first to finish waits for the last; None for no bound.
        step: The first step.
    """

    def __init__(self, policies: Sequence[str], *, timeout: float | None = None, step: int = 0) -> None:
        if not policies or len(set(policies)) != len(policies):
            raise ConfigError(f"a phase barrier is given the policies {list(policies)}; one or more, each once, needed")
        self._meeting = _Policies(policies, timeout=timeout)
        self._meeting.phase = 2 * step

    @property
    def state(self) -> PhaseState:
        """Where the barrier stands."""
        broken = self._meeting.broken
        return PhaseState(
            step=self._step,
            phase=self._phase,
            waiting_for=self._meeting.missing,
            broken=None if broken is None else str(self._as_ours(broken)),
        )

    async def finish(self, policy: str, phase: Phase, step: int) -> None:
        """Say that a policy is through with a phase; returns once all are. A waiter that is cancelled breaks it.

        Raises:
            PhaseBrokenError: The barrier broke, now or before; says why.
            RunError: This isn't the phase that is going on, or the policy has finished it already.
        """
        try:
            self._check(policy, phase, step)
            await self._meeting.arrive([policy])
        except BarrierBrokenError as error:
            raise self._as_ours(error) from error.reason
        except asyncio.CancelledError:
            self.break_(f"policy {policy!r} was cancelled while it waited")
            raise

    def break_(self, cause: str, reason: Exception | None = None) -> None:
        """Break the barrier: every present and later waiter gets the cause. The first cause stays."""
        self._meeting.break_(cause, reason)

    def leave(self, policy: str) -> None:
        """Go on without a policy, in the present phase too: if only it was missing, the phase ends.

        Raises:
            RunError: It is no party, or the last one.
        """
        self._check_party(policy)
        if len(self._meeting.parties) == 1:
            raise RunError(f"policy {policy!r} is the last party of the phases; a run without policies has none")
        self._meeting.leave(policy)

    def mend(self) -> None:
        """Begin the phase that broke again with the present parties, none of which has finished it.

        Raises:
            RunError: It isn't broken.
        """
        broken = self._meeting
        if broken.broken is None:
            raise RunError(f"the {self._phase.value} phase of step {self._step} goes on; only a broken one is mended")
        self._meeting = _Policies(broken.parties, timeout=broken.timeout)
        self._meeting.phase = broken.phase

    @property
    def is_awaited(self) -> bool:
        """Whether a policy has finished the present phase and waits for others."""
        return self._meeting.is_awaited

    @property
    def _step(self) -> int:
        return self._meeting.phase // 2

    @property
    def _phase(self) -> Phase:
        return Phase.UPDATE if self._meeting.phase % 2 else Phase.ROLLOUT

    def _check(self, policy: str, phase: Phase, step: int) -> None:
        if self._meeting.broken is not None:
            return
        self._check_party(policy)
        if (phase, step) != (self._phase, self._step):
            raise RunError(
                f"policy {policy!r} finished the {phase.value} phase of step {step}, but the {self._phase.value} "
                f"phase of step {self._step} is going on"
            )
        if policy not in self._meeting.missing:
            raise RunError(f"policy {policy!r} finished the {phase.value} phase of step {step} twice")

    def _check_party(self, policy: str) -> None:
        if policy not in self._meeting.parties:
            raise RunError(f"policy {policy!r} is not a party of the phases; those are {list(self._meeting.parties)}")

    def _as_ours(self, error: BarrierBrokenError) -> PhaseBrokenError:
        phase = Phase.UPDATE if error.phase % 2 else Phase.ROLLOUT
        return PhaseBrokenError(f"{phase.value} phase of step {error.phase // 2}: {error.cause}")


class _Policies(Rendezvous[str]):
    """The policies of a run, which wait for each other twice a step."""

    def late(self) -> str:
        return f"policies {list(self.missing)} did not finish within {self.timeout:g} s of the first"
