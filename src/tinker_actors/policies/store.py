"""Snapshots and training checkpoints in a local folder."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from tinker_actors.errors import PolicyError, SnapshotCorruptError, UnknownPolicyError
from tinker_actors.policies.handles import Handle, HandleKind, PolicyId, check_id
from tinker_actors.policies.sealing import MANIFEST, Manifest, discard, seal, verify
from tinker_actors.policies.spec import PolicyKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """An immutable, numbered export of a policy.

    Attributes:
        handle: `tinker://<policy id>/<sampler_weights or weights>/<name>`.
        policy_id: The policy.
        number: Increases with each one of the same policy and handle kind; never reused.
        step: Optimizer steps that the policy had behind it.
        base_model: The base model's name.
        kind: `lora` (a PEFT directory) or `full` (a transformers model directory).
        path: The directory's absolute path.
        parent: Handle of the snapshot or checkpoint that its weights grew from, if any.
        created_at: Seconds since the epoch.
    """

    handle: str
    policy_id: PolicyId
    number: int
    step: int
    base_model: str
    kind: PolicyKind
    path: str
    parent: str | None
    created_at: float


class SnapshotStore:
    """A folder of sealed directories, `<root>/<policy id>/<handle kind>/<name>`.

    Several processes may use one folder at a time. A snapshot appears whole or not at all, is never rewritten, and its
    number is never given again, even after it was pruned.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).resolve()

    def publish(
        self,
        policy_id: PolicyId,
        write: Callable[[Path], None],
        *,
        step: int,
        base_model: str,
        kind: PolicyKind = "lora",
        parent: str | None = None,
    ) -> Snapshot:
        """Store the next snapshot of a policy for samplers.

        Args:
            policy_id: The policy.
            write: Writes the snapshot's files into the folder that it is given.
            step: Optimizer steps that the policy has behind it.
            base_model: The base model's name.
            kind: What `write` writes: a PEFT directory or a model directory.
            parent: Handle of the snapshot or checkpoint that the weights grew from.

        Raises:
            PolicyError: The id is not valid.
        """
        number = self._take_number(policy_id, "sampler_weights")
        handle = Handle(policy_id=policy_id, kind="sampler_weights", name=f"{number:06d}")
        return self._seal(handle, number, write, step, base_model, kind, parent)

    def checkpoint(
        self,
        policy_id: PolicyId,
        name: str,
        write: Callable[[Path], None],
        *,
        step: int,
        base_model: str,
        kind: PolicyKind = "lora",
        parent: str | None = None,
    ) -> Snapshot:
        """Store a named training checkpoint of a policy; arguments as for `publish`.

        Raises:
            PolicyError: The id or name is not valid, or the policy has a checkpoint of this name.
        """
        handle = Handle(policy_id=policy_id, kind="weights", name=name)
        if self._path(handle).exists():
            raise PolicyError(f"{handle} exists; checkpoints are not rewritten, so choose another name or delete it")
        number = self._take_number(policy_id, "weights")
        return self._seal(handle, number, write, step, base_model, kind, parent)

    def delete(self, handle: str) -> None:
        """Delete a snapshot or checkpoint; its number is not given again.

        Raises:
            UnknownPolicyError: The store has no such snapshot or checkpoint.
        """
        discard(Path(self.get(handle).path))

    def get(self, handle: str) -> Snapshot:
        """What a handle stands for, from its manifest; the other files are checked by `verify`.

        Raises:
            PolicyError: The text is no handle.
            UnknownPolicyError: The store has no such snapshot or checkpoint.
            SnapshotCorruptError: Its manifest is torn or altered.
        """
        parsed = Handle.parse(handle)
        path = self._path(parsed)
        if not path.is_dir():
            known = [entry.name for entry in self._entries(parsed.policy_id, parsed.kind)]
            raise UnknownPolicyError(f"{handle} is not in the store {self.root}; the newest there are {known[-5:]}")
        snapshot = self._snapshot(path, Manifest.load(path))
        if snapshot.handle != handle:
            raise SnapshotCorruptError(f"{path / MANIFEST} is that of {snapshot.handle}, not of {handle}")
        return snapshot

    def verify(self, snapshot: Snapshot) -> None:
        """Check a snapshot's files against its manifest; to be done before they are loaded.

        Raises:
            UnknownPolicyError: It is gone.
            SnapshotCorruptError: Names the first file that is missing, torn or altered.
        """
        if not Path(snapshot.path).is_dir():
            raise UnknownPolicyError(f"{snapshot.handle} is gone from {snapshot.path}")
        verify(Path(snapshot.path))

    def list(self, policy_id: PolicyId, kind: HandleKind = "sampler_weights") -> tuple[Snapshot, ...]:
        """A policy's snapshots or checkpoints, oldest first; empty if it has none."""
        check_id("policy id", policy_id)
        found = [self._snapshot(path, Manifest.load(path)) for path in self._entries(policy_id, kind)]
        return tuple(sorted(found, key=lambda snapshot: snapshot.number))

    def latest(self, policy_id: PolicyId, kind: HandleKind = "sampler_weights") -> Snapshot:
        """The newest snapshot or checkpoint.

        Raises:
            UnknownPolicyError: The policy has none.
        """
        if found := self.list(policy_id, kind):
            return found[-1]
        raise UnknownPolicyError(f"policy {policy_id!r} has no {kind} in {self.root}; it has {self.policies()}")

    def policies(self) -> tuple[PolicyId, ...]:
        """The ids of all policies in the store, sorted."""
        if not self.root.is_dir():
            return ()
        return tuple(sorted(path.name for path in self.root.iterdir() if path.is_dir()))

    def prune(
        self,
        policy_id: PolicyId,
        *,
        keep_last: int,
        pinned: Collection[int] = (),
        kind: HandleKind = "sampler_weights",
    ) -> tuple[str, ...]:
        """Delete all but the last `keep_last` of a policy's snapshots or checkpoints and the pinned numbers.

        Returns:
            The handles of what was deleted.
        """
        if keep_last < 0:
            raise PolicyError(f"keep_last is {keep_last}; an integer of at least 0 is needed")
        found = self.list(policy_id, kind)
        gone = [snapshot for snapshot in found[: len(found) - keep_last] if snapshot.number not in pinned]
        for snapshot in gone:
            discard(Path(snapshot.path))
        return tuple(snapshot.handle for snapshot in gone)

    def _path(self, handle: Handle) -> Path:
        return self.root / handle.policy_id / handle.kind / handle.name

    def _entries(self, policy_id: PolicyId, kind: HandleKind) -> list[Path]:
        folder = self.root / policy_id / kind
        if not folder.is_dir():
            return []
        return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))

    def _take_number(self, policy_id: PolicyId, kind: HandleKind) -> int:
        """The next number of a policy and kind, on disk as taken before it is returned."""
        folder = self.root / check_id("policy id", policy_id) / kind
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".numbers").open("a+", encoding="ascii") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # released when the file closes
            file.seek(0)
            # One line a number: a torn last line is no number, and the one above it still counts.
            taken = [int(line) for line in file.read().split("\n")[:-1] if line.isdecimal()]
            number = max(taken, default=0) + 1
            file.write(f"\n{number}\n")
            file.flush()
            os.fsync(file.fileno())
        return number

    def _seal(
        self,
        handle: Handle,
        number: int,
        write: Callable[[Path], None],
        step: int,
        base_model: str,
        kind: PolicyKind,
        parent: str | None,
    ) -> Snapshot:
        def describe(files: dict[str, str]) -> Manifest:
            return Manifest(
                handle=str(handle),
                number=number,
                step=step,
                base_model=base_model,
                kind=kind,
                parent=parent,
                created_at=time.time(),
                files=files,
            )

        path = self._path(handle)
        return self._snapshot(path, seal(path, write, describe))

    def _snapshot(self, path: Path, manifest: Manifest) -> Snapshot:
        return Snapshot(
            handle=manifest.handle,
            policy_id=Handle.parse(manifest.handle).policy_id,
            number=manifest.number,
            step=manifest.step,
            base_model=manifest.base_model,
            kind=cast(PolicyKind, manifest.kind),
            path=str(path),
            parent=manifest.parent,
            created_at=manifest.created_at,
        )
