"""The registry: which snapshot of each policy is the latest."""

from __future__ import annotations

from tinker_actors.actors import Actor
from tinker_actors.errors import PolicyError, UnknownPolicyError
from tinker_actors.policies.handles import PolicyId
from tinker_actors.policies.store import Snapshot


class PolicyRegistry(Actor):
    """Knows every announced snapshot of every policy; the unknown is an error, never the base model."""

    def __init__(self) -> None:
        self._snapshots: dict[PolicyId, dict[str, Snapshot]] = {}

    async def announce(self, snapshot: Snapshot) -> None:
        """Make a snapshot its policy's latest; saying the latest again changes nothing.

        Raises:
            PolicyError: Its number is not above that of the policy's latest.
        """
        known = self._snapshots.setdefault(snapshot.policy_id, {})
        if known:
            latest = next(reversed(known.values()))
            if latest == snapshot:
                return
            if snapshot.number <= latest.number:
                raise PolicyError(f"{snapshot.handle} can't become the latest; {latest.handle} was announced before")
        known[snapshot.handle] = snapshot

    async def latest(self, policy_id: PolicyId) -> Snapshot:
        """The latest snapshot of a policy.

        Raises:
            UnknownPolicyError: Nothing was announced for it.
        """
        if known := self._snapshots.get(policy_id):
            return next(reversed(known.values()))
        raise UnknownPolicyError(f"policy {policy_id!r} is unknown; the announced ones are {sorted(self._snapshots)}")

    async def get(self, handle: str) -> Snapshot:
        """An announced snapshot.

        Raises:
            UnknownPolicyError: It was not announced, or was retired.
        """
        for known in self._snapshots.values():
            if handle in known:
                return known[handle]
        raise UnknownPolicyError(f"{handle} is unknown; policies with snapshots are {sorted(self._snapshots)}")

    async def retire(self, handle: str) -> None:
        """Forget a snapshot that is no longer stored; a policy's latest stays.

        Raises:
            UnknownPolicyError: It is not known.
            PolicyError: It is its policy's latest.
        """
        snapshot = await self.get(handle)
        if snapshot == await self.latest(snapshot.policy_id):
            raise PolicyError(f"{handle} is the latest of {snapshot.policy_id!r} and can't be retired")
        del self._snapshots[snapshot.policy_id][handle]

    async def policies(self) -> tuple[PolicyId, ...]:
        """The ids of all policies with an announced snapshot, sorted."""
        return tuple(sorted(self._snapshots))
