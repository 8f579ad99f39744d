"""Sealed directories in a local folder, which several processes may use at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import get_args

from tinker_actors.errors import SnapshotCorruptError, UnknownPolicyError
from tinker_actors.policies.handles import Handle, HandleKind, PolicyId, folder_of, policy_of
from tinker_actors.policies.places import PINS
from tinker_actors.policies.sealing import Manifest, discard, seal, sweep, verify


class LocalPlace:
    """A folder, which need not exist; nothing in it is ever copied to be read. See `Place`."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()

    @property
    def root(self) -> Path:
        """The folder's absolute path."""
        return self._root

    def policies(self) -> list[PolicyId]:
        """Policies that have something here."""
        folders = [path.name for path in self.root.iterdir() if path.is_dir()] if self.root.is_dir() else []
        return [policy_id for name in folders if (policy_id := policy_of(name)) is not None]

    def names(self, policy_id: PolicyId, kind: HandleKind) -> list[str]:
        """What of a policy and kind is here."""
        folder = self.root / folder_of(policy_id) / kind
        if not folder.is_dir():
            return []
        return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))

    def manifests(self, policy_id: PolicyId, kind: HandleKind) -> list[Manifest]:
        """The manifests of all of a policy and kind."""
        folder = self.root / folder_of(policy_id) / kind
        found = [self._manifest(folder / name) for name in self.names(policy_id, kind)]
        return [manifest for manifest in found if manifest is not None]

    def manifest(self, handle: Handle) -> Manifest | None:
        """What a directory's manifest says."""
        return self._manifest(self._path(handle))

    def where(self, handle: Handle) -> str:
        """A directory's absolute path."""
        return str(self._path(handle))

    def take_number(self, policy_id: PolicyId, kind: HandleKind) -> int:
        """The next number, on disk as taken before it is returned; never the same one to two processes."""
        folder = self.root / folder_of(policy_id) / kind
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

    def seal(
        self, handle: Handle, write: Callable[[Path], None], describe: Callable[[dict[str, str]], Manifest]
    ) -> Manifest:
        """Make a directory appear complete and on disk, or not at all."""
        return seal(self._path(handle), write, describe)

    def fetch(self, handle: Handle) -> Path:
        """The directory itself, its files checked."""
        path = self._path(handle)
        try:
            verify(path)
        except SnapshotCorruptError:
            if path.is_dir():
                raise
            raise UnknownPolicyError(f"{handle} is gone from {path}") from None
        return path

    def discard(self, handle: Handle) -> None:
        """Delete a directory and its pin; one that is gone already is no error."""
        self.pin(handle, pinned=False)
        discard(self._path(handle))

    def sweep(self) -> None:
        """Remove drafts that nobody writes any more, and what is left of directories that were being deleted."""
        for policy_id in self.policies():
            for kind in get_args(HandleKind):
                sweep(self.root / folder_of(policy_id) / kind)

    def pins(self, policy_id: PolicyId, kind: HandleKind) -> frozenset[str]:
        """Names of what is pinned."""
        folder = self.root / folder_of(policy_id) / PINS / kind
        return frozenset(path.name for path in folder.iterdir()) if folder.is_dir() else frozenset()

    def pin(self, handle: Handle, *, pinned: bool) -> None:
        """Pin a directory, or take the pin away."""
        mark = self.root / folder_of(handle.policy_id) / PINS / handle.kind / handle.name
        if pinned:
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
        else:
            mark.unlink(missing_ok=True)

    def _manifest(self, directory: Path) -> Manifest | None:
        try:
            manifest = Manifest.load(directory)
        except SnapshotCorruptError:
            if directory.is_dir():
                raise
            return None
        return replace(manifest, base_model=base_beside(self.root, manifest.base_model))

    def _path(self, handle: Handle) -> Path:
        return self.root / folder_of(handle.policy_id) / handle.kind / handle.name


def base_beside(root: Path, name: str) -> str:
    """A base model's name; where it is a folder that is gone, the one called so that lies beside a store, if any.

    A run that made its own base model keeps it there, so that the run's folder can be moved as a whole.
    """
    folder = Path(name)
    if not folder.is_absolute() or folder.exists():
        return name
    beside = root.parent / folder.name
    return str(beside) if (beside / "config.json").is_file() else name
