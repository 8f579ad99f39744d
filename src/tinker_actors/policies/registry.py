"""The registry: which snapshot of each policy is the latest, who hears of it, and which ones are in use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from tinker_actors.actors import Actor, ActorRef, concurrent
from tinker_actors.errors import PolicyConflictError, PolicyError, UnknownPolicyError
from tinker_actors.policies.handles import HandleKind, PolicyId
from tinker_actors.policies.retention import Retention
from tinker_actors.policies.snapshot import Snapshot
from tinker_actors.policies.store import SnapshotStore

NOTHING = "nothing"
"""As `expected` of `announce`: the policy must not have been announced yet."""


class PolicyRegistry(Actor):
    """Knows every announced snapshot of every policy; the unknown is an error, never the base model.

    Args:
        store: The snapshot store whose snapshots `expire` deletes; without one it only forgets them.
    """

    def __init__(self, store: str | None = None) -> None:
        self._snapshots: dict[PolicyId, dict[str, Snapshot]] = {}
        self._store = None if store is None else SnapshotStore(store)
        self._subscribers: set[_Subscriber] = set()
        self._leases: dict[str | ActorRef, frozenset[str]] = {}
        self._watchers: dict[ActorRef, asyncio.Task[None]] = {}

    async def on_stop(self) -> None:
        """Watch nobody any more."""
        for watcher in self._watchers.values():
            watcher.cancel()

    async def announce(self, snapshot: Snapshot, *, expected: str | None = None) -> None:
        """Make a snapshot its policy's latest; saying the latest again changes nothing.

        Args:
            snapshot: The snapshot.
            expected: The handle that must be the latest now, or `NOTHING`; None for whichever.

        Raises:
            PolicyConflictError: The latest is another one than expected; the text names it.
            PolicyError: Its number is not above that of the policy's latest.
        """
        known = self._snapshots.get(snapshot.policy_id, {})
        latest = next(reversed(known.values()), None)
        if latest == snapshot:
            return
        present = latest.handle if latest else NOTHING
        if expected is not None and expected != present:
            raise PolicyConflictError(
                f"{snapshot.handle} does not become the latest: {expected} was expected to be it, but {present} is"
            )
        if latest is not None and snapshot.number <= latest.number:
            raise PolicyError(f"{snapshot.handle} can't become the latest; {latest.handle} was announced before")
        self._snapshots.setdefault(snapshot.policy_id, {})[snapshot.handle] = snapshot
        for subscriber in self._subscribers:
            subscriber.tell(snapshot)

    @concurrent
    async def announcements(self, policy_id: PolicyId | None = None) -> AsyncIterator[Snapshot]:
        """The latest snapshot of a policy, or of each, and every later one as it is announced.

        Nobody waits for a slow reader: it gets the newest of each policy, and skips what was overtaken meanwhile.
        """
        subscriber = _Subscriber(policy_id)
        for known in self._snapshots.values():
            subscriber.tell(next(reversed(known.values())))
        self._subscribers.add(subscriber)
        try:
            while True:
                yield await subscriber.next()
        finally:
            self._subscribers.discard(subscriber)

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
        return self._known(handle)

    async def list(self, policy_id: PolicyId) -> tuple[Snapshot, ...]:
        """The announced snapshots of a policy, oldest first; empty if it is unknown."""
        return tuple(self._snapshots.get(policy_id, {}).values())

    async def policies(self) -> tuple[PolicyId, ...]:
        """The ids of all policies with an announced snapshot, sorted."""
        return tuple(sorted(self._snapshots))

    async def lease(self, holder: ActorRef | str, handles: Sequence[str]) -> None:
        """Say which snapshots somebody uses from now on, in place of what was said before; they don't expire.

        Args:
            holder: An actor, whose leases end with it or when it is started again; or a name, whose leases end only
                when it says so.
            handles: All that it uses; empty for nothing more.

        Raises:
            UnknownPolicyError: One is not announced, or was retired; nothing has changed then.
        """
        before = self._leases.get(holder, frozenset())
        for handle in handles:
            if handle not in before:
                self._known(handle)
        self._leases[holder] = frozenset(handles)
        if not handles:
            self._end_lease(holder)
        elif isinstance(holder, ActorRef) and holder not in self._watchers:
            self._watchers[holder] = asyncio.create_task(self._watch(holder))

    async def in_use(self) -> tuple[str, ...]:
        """Handles of all snapshots that somebody uses, sorted."""
        return tuple(sorted(frozenset[str]().union(*self._leases.values())))

    async def retire(self, handle: str) -> None:
        """Forget a snapshot that is no longer stored; a policy's latest stays, and so does one in use.

        Raises:
            UnknownPolicyError: It is not known.
            PolicyError: It is its policy's latest, or in use.
        """
        snapshot = self._known(handle)
        if snapshot == await self.latest(snapshot.policy_id):
            raise PolicyError(f"{handle} is the latest of {snapshot.policy_id!r} and can't be retired")
        if holders := [str(holder) for holder, handles in self._leases.items() if handle in handles]:
            raise PolicyError(f"{handle} is in use by {holders} and can't be retired")
        del self._snapshots[snapshot.policy_id][handle]

    async def expire(
        self, policy_id: PolicyId, retention: Retention, *, kind: HandleKind = "sampler_weights"
    ) -> tuple[str, ...]:
        """Retire and delete what a policy need not keep any longer: never the latest, one pinned, or one in use.

        Returns:
            The handles of what is gone.

        Raises:
            PolicyError: The registry was made without a store.
        """
        if self._store is None:
            raise PolicyError("this registry has no store to expire snapshots from; give it one when it is spawned")
        known = self._snapshots.get(policy_id, {})
        in_use = {*await self.in_use(), *list(known)[-1:]}
        gone = await asyncio.to_thread(self._store.expire, policy_id, retention, kind=kind, in_use=in_use)
        for handle in gone:
            known.pop(handle, None)
        return gone

    async def forget(self, policy_id: PolicyId) -> None:
        """Forget a policy and all its snapshots, once it was deleted.

        Raises:
            UnknownPolicyError: It is not known.
            PolicyError: One of its snapshots is in use.
        """
        known = self._snapshots.get(policy_id)
        if known is None:
            await self.latest(policy_id)
        elif used := sorted(set(known) & set(await self.in_use())):
            raise PolicyError(f"policy {policy_id!r} can't be forgotten: {used} are in use")
        else:
            del self._snapshots[policy_id]

    def _known(self, handle: str) -> Snapshot:
        for known in self._snapshots.values():
            if handle in known:
                return known[handle]
        raise UnknownPolicyError(f"{handle} is unknown; policies with snapshots are {sorted(self._snapshots)}")

    def _end_lease(self, holder: str | ActorRef) -> None:
        self._leases.pop(holder, None)
        if isinstance(holder, ActorRef) and (watcher := self._watchers.pop(holder, None)) is not None:
            watcher.cancel()

    async def _watch(self, holder: ActorRef) -> None:
        async for _ in self.mesh.watch(holder):  # started again or ended: what it held in memory is gone
            self._end_lease(holder)


class _Subscriber:
    """The announcements that a reader has not taken yet: at most one of each policy."""

    def __init__(self, policy_id: PolicyId | None) -> None:
        self._policy_id = policy_id
        self._waiting: dict[PolicyId, Snapshot] = {}
        self._some = asyncio.Event()

    def tell(self, snapshot: Snapshot) -> None:
        if self._policy_id in (None, snapshot.policy_id):
            self._waiting[snapshot.policy_id] = snapshot
            self._some.set()

    async def next(self) -> Snapshot:
        await self._some.wait()
        snapshot = self._waiting.pop(next(iter(self._waiting)))
        if not self._waiting:
            self._some.clear()
        return snapshot
