"""Local copies of directories that lie in an object store, named by what is in them."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from tinker_actors.errors import SnapshotCorruptError
from tinker_actors.policies.sealing import MANIFEST, Manifest, discard, drafted, sweep, verify

_UNTOUCHED = 600.0
"""Seconds for which a copy that was handed out is not dropped: whoever got it may be reading it."""


class FetchedCopies:
    """A folder of verified copies, one for each manifest's digest; several processes may use it at a time.

    Args:
        root: The folder.
        limit: Bytes; beyond them the copies that were used least recently go.
    """

    def __init__(self, root: Path, limit: int = 16 * 2**30) -> None:
        self.root, self._limit = root, limit

    def get(self, manifest: Manifest) -> Path | None:
        """The copy, its files checked; None if there is none, or only one that was altered, which is dropped."""
        path = self.root / manifest.digest
        if not path.is_dir():
            return None
        try:
            verify(path)
        except SnapshotCorruptError:
            discard(path)
            return None
        try:
            os.utime(path)
        except FileNotFoundError:  # another process dropped it
            return None
        return path

    def build(self, fill: Callable[[Path], Manifest], where: str) -> tuple[Manifest, Path]:
        """Make a copy, whole or not at all.

        Args:
            fill: Writes the files into the folder that it is given and returns their manifest.
            where: What errors call the directory.

        Raises:
            SnapshotCorruptError: The files aren't those of the manifest.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        with drafted(self.root, "copy") as draft:
            manifest = fill(draft)
            (draft / MANIFEST).write_text(manifest.dumps(), encoding="utf-8")
            verify(draft, where=where)
            target = self.root / manifest.digest
            try:
                draft.rename(target)
            except OSError:
                if not target.is_dir():  # else another process was first, with the same files
                    raise
        self._shrink()
        return manifest, target

    def drop(self, manifest: Manifest) -> None:
        """Delete a copy, if there is one."""
        with contextlib.suppress(OSError):  # another process was first
            discard(self.root / manifest.digest)

    def _shrink(self) -> None:
        sweep(self.root)
        held: list[tuple[float, int, Path]] = []
        for path in self.root.glob("[!.]*"):
            with contextlib.suppress(OSError):  # another process dropped it
                size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
                held.append((path.stat().st_mtime, size, path))
        excess = sum(size for _, size, _ in held) - self._limit
        for touched, size, path in sorted(held):
            if excess <= 0 or time.time() - touched < _UNTOUCHED:
                break
            shutil.rmtree(path, ignore_errors=True)
            excess -= size
