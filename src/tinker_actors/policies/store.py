"""Snapshots and training checkpoints, in a local folder or an object store."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection
from pathlib import Path

from tinker_actors.errors import PolicyError, SnapshotCorruptError, UnknownPolicyError
from tinker_actors.policies.full_disk import full_disk_told
from tinker_actors.policies.handles import Handle, HandleKind, PolicyId, check_id
from tinker_actors.policies.places import place_of
from tinker_actors.policies.retention import Retention
from tinker_actors.policies.sealing import MANIFEST, Manifest, Origin
from tinker_actors.policies.snapshot import Snapshot


class SnapshotStore:
    """Sealed directories, `<root>/<policy id>/<handle kind>/<name>`, in a local folder or behind any URL of fsspec.

        SnapshotStore("run/policies"), SnapshotStore("s3://bucket/run"), SnapshotStore("memory://run")

    Several processes may use one store at a time. A snapshot appears whole or not at all, is never rewritten, and its
    number is never given again, even after it expired. A local folder is read in place; of what lies elsewhere a copy
    is kept in the cache folder, and checked whenever it is used.

    Args:
        root: The folder, or the URL.

    Attributes:
        root: The folder's absolute path, or the URL.

    Raises:
        ConfigError: The URL is of a kind that isn't known, or whose package isn't installed.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._place = place_of(root)
        self.root = self._place.root

    def reserve(self, policy_id: PolicyId) -> str:
        """The handle of a policy's next snapshot before there is one, for `publish`; it is not given again.

        Raises:
            PolicyError: The id is not valid.
            StoreError: The store can't be reached.
        """
        number = self._place.take_number(check_id("policy id", policy_id), "sampler_weights")
        return str(Handle(policy_id=policy_id, kind="sampler_weights", name=f"{number:06d}"))

    def publish(
        self,
        policy_id: PolicyId,
        write: Callable[[Path], None],
        origin: Origin,
        *,
        ttl: float | None = None,
        handle: str | None = None,
    ) -> Snapshot:
        """Store a snapshot of a policy for samplers.

        Args:
            policy_id: The policy.
            write: Writes the snapshot's files into the folder that it is given.
            origin: Where the weights come from, and what `write` writes.
            ttl: Seconds after which it may expire; None for never.
            handle: One that `reserve` gave for the policy; None for the next.

        Raises:
            PolicyError: The id, the ttl or the handle is not valid, or there is a snapshot of this handle.
            StoreError: The store can't be reached.
        """
        if ttl is not None and not (math.isfinite(ttl) and ttl > 0):
            raise PolicyError(f"ttl is {ttl}; a positive number of seconds, or None, is needed")
        parsed = Handle.parse(handle or self.reserve(policy_id), kind="sampler_weights")
        if parsed.policy_id != policy_id or not parsed.name.isdecimal():
            raise PolicyError(f"handle is {handle}; one that was reserved for {policy_id!r} is needed")
        return self._seal(parsed, int(parsed.name), write, origin, ttl)

    def checkpoint(self, policy_id: PolicyId, name: str, write: Callable[[Path], None], origin: Origin) -> Snapshot:
        """Store a named training checkpoint of a policy; arguments as for `publish`.

        Raises:
            PolicyError: The id or name is not valid, or the policy has a checkpoint of this name.
            StoreError: The store can't be reached.
        """
        handle = self.check_free(policy_id, name)
        number = self._place.take_number(policy_id, "weights")
        return self._seal(handle, number, write, origin, None)

    def check_free(self, policy_id: PolicyId, name: str) -> Handle:
        """The handle of a checkpoint of this name; errors as of `checkpoint`."""
        handle = Handle(policy_id=policy_id, kind="weights", name=name)
        if name in self._place.names(policy_id, "weights"):
            raise PolicyError(f"{handle} exists; checkpoints are not rewritten, so choose another name or delete it")
        return handle

    def delete(self, handle: str) -> None:
        """Delete a snapshot or checkpoint; its number is not given again.

        If that fails, or the process is killed meanwhile, some files may be left; deleting it again deletes them.

        Raises:
            UnknownPolicyError: The store has no such snapshot or checkpoint.
            PolicyError: It is pinned.
        """
        parsed = Handle.parse(handle)
        try:
            self.get(handle)
        except UnknownPolicyError:
            self._place.discard(parsed)  # what a deletion before this one left of it
            raise
        if parsed.name in self._place.pins(parsed.policy_id, parsed.kind):
            raise PolicyError(f"{handle} is pinned; unpin it before it is deleted")
        self._place.discard(parsed)

    def sweep(self) -> None:
        """Remove what writers and deleters that were killed left half done in a local folder.

        What somebody is writing stays, and with it whatever else was left beside it, for the next time. Of an object
        store nothing is removed.
        """
        self._place.sweep()

    def get(self, handle: str) -> Snapshot:
        """What a handle stands for, from its manifest; the other files are checked by `fetch`.

        Raises:
            PolicyError: The text is no handle.
            UnknownPolicyError: The store has no such snapshot or checkpoint.
            SnapshotCorruptError: Its manifest is torn or altered.
        """
        return Snapshot.of(self.manifest(handle), self._place.where(Handle.parse(handle)))

    def manifest(self, handle: str) -> Manifest:
        """All that a snapshot's manifest says; errors as of `get`."""
        parsed = Handle.parse(handle)
        manifest = self._place.manifest(parsed)
        if manifest is None:
            known = ", ".join(self._place.names(parsed.policy_id, parsed.kind)[-5:]) or "none"
            raise UnknownPolicyError(f"{handle} is not in the store {self.root}; the newest there: {known}")
        if manifest.handle != handle:
            where = self._place.where(parsed)
            raise SnapshotCorruptError(f"{where}/{MANIFEST} is that of {manifest.handle}, not of {handle}")
        return manifest

    def fetch(self, snapshot: Snapshot) -> Path:
        """A snapshot's directory on this host, its files checked against the manifest; to be read only.

        In a local store that is the directory itself; of any other a copy in the cache folder, which is there for the
        next time. It may be dropped from there ten minutes after.

        Raises:
            UnknownPolicyError: It is gone.
            SnapshotCorruptError: Names the first file that is missing, torn, altered or not of the directory.
            StoreError: The store can't be reached.
        """
        return self._place.fetch(Handle.parse(snapshot.handle))

    def verify(self, snapshot: Snapshot) -> None:
        """Check a snapshot's files against its manifest; errors as of `fetch`, which does the same."""
        self.fetch(snapshot)

    def pin(self, handle: str) -> None:
        """Keep a snapshot or checkpoint from expiring and from being deleted, until `unpin`; kept in the store.

        Raises:
            UnknownPolicyError: The store has no such snapshot or checkpoint.
        """
        self.get(handle)
        self._place.pin(Handle.parse(handle), pinned=True)
        try:
            self.get(handle)
        except UnknownPolicyError:  # it was deleted meanwhile
            self._place.pin(Handle.parse(handle), pinned=False)
            raise

    def unpin(self, handle: str) -> None:
        """Undo `pin`; nothing happens to one that isn't pinned."""
        self._place.pin(Handle.parse(handle), pinned=False)

    def pinned(self, policy_id: PolicyId, kind: HandleKind = "sampler_weights") -> frozenset[str]:
        """Handles of a policy's pinned snapshots or checkpoints."""
        names = self._place.pins(check_id("policy id", policy_id), kind)
        return frozenset(str(Handle(policy_id=policy_id, kind=kind, name=name)) for name in names)

    def list(self, policy_id: PolicyId, kind: HandleKind = "sampler_weights") -> tuple[Snapshot, ...]:
        """A policy's snapshots or checkpoints, oldest first; empty if it has none.

        Raises:
            SnapshotCorruptError: A manifest is torn or altered.
            StoreError: The store can't be reached.
        """
        manifests = self._place.manifests(check_id("policy id", policy_id), kind)
        found = [Snapshot.of(manifest, self._place.where(Handle.parse(manifest.handle))) for manifest in manifests]
        return tuple(sorted(found, key=lambda snapshot: snapshot.number))

    def handles(self, policy_id: PolicyId, kind: HandleKind = "sampler_weights") -> frozenset[str]:
        """Handles of a policy's snapshots or checkpoints, whatever their state: no manifest is read.

        Raises:
            StoreError: The store can't be reached.
        """
        names = self._place.names(check_id("policy id", policy_id), kind)
        return frozenset(str(Handle(policy_id=policy_id, kind=kind, name=name)) for name in names)

    def latest(self, policy_id: PolicyId, kind: HandleKind = "sampler_weights") -> Snapshot:
        """The newest snapshot or checkpoint.

        Raises:
            UnknownPolicyError: The policy has none.
        """
        if found := self.list(policy_id, kind):
            return found[-1]
        known = ", ".join(self.policies()) or "none"
        raise UnknownPolicyError(f"policy {policy_id!r} has no {kind} in {self.root}; the policies there: {known}")

    def policies(self) -> tuple[PolicyId, ...]:
        """The ids of all policies in the store, sorted."""
        return tuple(sorted(self._place.policies()))

    def expire(
        self,
        policy_id: PolicyId,
        retention: Retention,
        *,
        kind: HandleKind = "sampler_weights",
        in_use: Collection[str] = (),
    ) -> tuple[str, ...]:
        """Delete what a policy need not keep any longer: never the newest, one that is pinned, or one in use.

        Args:
            policy_id: The policy.
            retention: What is kept.
            kind: Snapshots or checkpoints.
            in_use: Handles of those that somebody serves or reads.

        Returns:
            The handles of what was deleted.
        """
        gone: list[str] = []
        for snapshot in self.expired(policy_id, retention, kind=kind, in_use=in_use):
            if snapshot.handle not in self.pinned(policy_id, kind):  # deleting those before it takes a while
                self._place.discard(Handle.parse(snapshot.handle))
                gone.append(snapshot.handle)
        return tuple(gone)

    def expired(
        self,
        policy_id: PolicyId,
        retention: Retention,
        *,
        kind: HandleKind = "sampler_weights",
        in_use: Collection[str] = (),
    ) -> tuple[Snapshot, ...]:
        """What `expire` would delete now."""
        found = self.list(policy_id, kind)
        kept = {*in_use, *self.pinned(policy_id, kind)} if found else set(in_use)
        return tuple(retention.expired(found, now=time.time(), kept=kept))

    def _seal(
        self, handle: Handle, number: int, write: Callable[[Path], None], origin: Origin, ttl: float | None
    ) -> Snapshot:
        def fill(folder: Path) -> None:
            with full_disk_told(str(self.root)):
                write(folder)

        def describe(files: dict[str, str]) -> Manifest:
            now = time.time()
            return Manifest(
                handle=str(handle),
                number=number,
                step=origin.step,
                base_model=origin.base_model,
                kind=origin.kind,
                parent=origin.parent,
                created_at=now,
                files=files,
                expires_at=None if ttl is None else now + ttl,
                spec=None if origin.spec is None else dict(origin.spec),
            )

        return Snapshot.of(self._place.seal(handle, fill, describe), self._place.where(handle))
