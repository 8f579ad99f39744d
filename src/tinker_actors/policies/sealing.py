"""Directories that are written whole or not at all, and that tell when a file of theirs was altered."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from tinker_actors.errors import SnapshotCorruptError

MANIFEST = "manifest.json"
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a sealed directory holds and where it comes from; stored as its `manifest.json`.

    Attributes:
        handle: The snapshot's or checkpoint's handle.
        number: Increases with each one of the same policy and kind; never reused.
        step: Optimizer steps that the policy had behind it.
        base_model: The base model's name.
        kind: `lora` or `full`.
        parent: Handle of the snapshot or checkpoint that this one's weights grew from, if any.
        created_at: Seconds since the epoch.
        files: Relative path of every other file to its sha256 in hex.
    """

    handle: str
    number: int
    step: int
    base_model: str
    kind: str
    parent: str | None
    created_at: float
    files: dict[str, str]

    def dumps(self) -> str:
        """As JSON text, with a digest of itself."""
        body = {"format": FORMAT, **asdict(self)}
        return json.dumps({**body, "digest": _digest(body)}, indent=2, sort_keys=True) + "\n"

    @classmethod
    def load(cls, directory: Path) -> Manifest:
        """Read a directory's manifest.

        Raises:
            SnapshotCorruptError: It is missing, torn or altered, or of a format that this version can't read.
        """
        path = directory / MANIFEST
        try:
            body = cast(dict[str, Any], json.loads(path.read_bytes()))
            digest, version = body.pop("digest"), body["format"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise SnapshotCorruptError(f"{path} can't be read as a manifest: {error}") from error
        if digest != _digest(body):
            raise SnapshotCorruptError(f"{path} was altered: it doesn't match its own digest")
        if version != FORMAT:
            raise SnapshotCorruptError(f"{path} has format {version}; this version reads format {FORMAT}")
        del body["format"]
        return cls(**body)


def seal(target: Path, write: Callable[[Path], None], describe: Callable[[dict[str, str]], Manifest]) -> Manifest:
    """Make directory `target`, which must not exist, appear complete and on disk, or not at all.

    Args:
        target: Its parent exists.
        write: Writes the files into the folder that it is given.
        describe: Makes the manifest from the files' digests.
    """
    with _draft(target) as draft:
        write(draft)
        manifest = describe(_digests(draft))
        (draft / MANIFEST).write_text(manifest.dumps(), encoding="utf-8")
        for path in _files(draft):
            _sync(path)
        for folder in [*(path for path in draft.rglob("*") if path.is_dir()), draft]:
            _sync(folder)
        os.rename(draft, target)
        _sync(target.parent)
    return manifest


def verify(directory: Path) -> Manifest:
    """Check every file of a sealed directory against its manifest, and return that.

    Raises:
        SnapshotCorruptError: Names the first file that is missing, torn, altered or not of the directory.
    """
    manifest = Manifest.load(directory)
    present = {path.relative_to(directory).as_posix() for path in _files(directory)} - {MANIFEST}
    for name in sorted(present | set(manifest.files)):
        if name not in manifest.files:
            raise SnapshotCorruptError(f"{directory / name} is not in the manifest of {manifest.handle}")
        if name not in present:
            raise SnapshotCorruptError(f"{directory / name} of {manifest.handle} is missing")
        if (found := _sha256(directory / name)) != manifest.files[name]:
            raise SnapshotCorruptError(
                f"{directory / name} of {manifest.handle} is torn or altered: sha256 is {found}, "
                f"the manifest has {manifest.files[name]}"
            )
    return manifest


def discard(directory: Path) -> None:
    """Delete a directory so that no reader finds half of it under its name."""
    aside = Path(tempfile.mkdtemp(prefix=".gone-", dir=directory.parent))
    os.rename(directory, aside / directory.name)
    shutil.rmtree(aside)


@contextmanager
def _draft(target: Path) -> Generator[Path]:
    folder = Path(tempfile.mkdtemp(prefix=".draft-", dir=target.parent))
    draft = folder / target.name
    draft.mkdir()
    try:
        yield draft
    finally:
        shutil.rmtree(folder)


def _files(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if not path.is_dir()]


def _digests(directory: Path) -> dict[str, str]:
    return {path.relative_to(directory).as_posix(): _sha256(path) for path in _files(directory)}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
