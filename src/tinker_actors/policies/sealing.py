"""Directories that are written whole or not at all, and that tell when a file of theirs was altered."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any, cast

from tinker_actors.errors import PolicyError, SnapshotCorruptError
from tinker_actors.policies.spec import PolicyKind

MANIFEST = "manifest.json"
FORMAT = 1

_DRAFT = ".draft-"
_GONE = ".gone-"
_LOCK = "lock"
"""The first file of a draft, held by its writer as long as that lives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where the weights that are stored come from.

    Attributes:
        step: Optimizer steps that their policy has behind it.
        base_model: The base model's name.
        kind: What is stored: a PEFT directory (`lora`) or a model directory (`full`).
        parent: Handle of the snapshot or checkpoint that the weights grew from.
        spec: What the policy was made from, as plain data; None if that isn't said.
    """

    step: int
    base_model: str
    kind: PolicyKind = "lora"
    parent: str | None = None
    spec: Mapping[str, Any] | None = None


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
        expires_at: When its time to live is over, in seconds since the epoch; None for never.
        spec: What the policy was made from, as plain data; None if that wasn't said.
    """

    handle: str
    number: int
    step: int
    base_model: str
    kind: PolicyKind
    parent: str | None
    created_at: float
    files: dict[str, str]
    expires_at: float | None = None
    spec: dict[str, Any] | None = None

    @property
    def origin(self) -> Origin:
        """Where the weights come from, to store a copy with."""
        return Origin(step=self.step, base_model=self.base_model, kind=self.kind, parent=self.parent, spec=self.spec)

    def dumps(self) -> str:
        """As JSON text, with a digest of itself."""
        body = self._body()
        return json.dumps({**body, "digest": _digest(body)}, indent=2, sort_keys=True) + "\n"

    @property
    def digest(self) -> str:
        """The sha256 of all that it says, in hex."""
        return _digest(self._body())

    @classmethod
    def load(cls, directory: Path) -> Manifest:
        """Read a directory's manifest.

        Raises:
            SnapshotCorruptError: It is missing, torn or altered, or of a format that this version can't read.
        """
        path = directory / MANIFEST
        try:
            content = path.read_bytes()
        except OSError as error:
            raise SnapshotCorruptError(f"{path} can't be read as a manifest: {error}") from error
        return cls.loads(content, str(path))

    @classmethod
    def loads(cls, content: bytes, where: str) -> Manifest:
        """Read a manifest's bytes; `where` they come from is named in errors.

        Raises:
            SnapshotCorruptError: They are torn or altered, or of a format that this version can't read.
        """
        try:
            body = cast(dict[str, Any], json.loads(content))
            digest, version = body.pop("digest"), body["format"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SnapshotCorruptError(f"{where} can't be read as a manifest: {error}") from error
        if digest != _digest(body):
            raise SnapshotCorruptError(f"{where} was altered: it doesn't match its own digest")
        if version != FORMAT:
            raise SnapshotCorruptError(f"{where} has format {version}; this version reads format {FORMAT}")
        del body["format"]
        try:
            manifest = cls(**body)
        except TypeError as error:
            raise SnapshotCorruptError(f"{where} has not the fields that this version knows: {error}") from error
        if outside := [name for name in manifest.files if ".." in PurePosixPath(name).parts or name.startswith("/")]:
            raise SnapshotCorruptError(f"{where} names {outside[0]}, which is not below its directory")
        return manifest

    def check(self, present: Collection[str], sha256: Callable[[str], str], where: str) -> None:
        """Compare the files that are there with the ones named here.

        Args:
            present: Relative paths of the files, without the manifest's own.
            sha256: The digest of one of them.
            where: The directory, as named in errors.

        Raises:
            SnapshotCorruptError: Names the first file that is missing, torn, altered or not of the directory.
        """
        for name in sorted({*present, *self.files}):
            path = f"{where}/{name}"
            if name not in self.files:
                raise SnapshotCorruptError(f"{path} is not in the manifest of {self.handle}")
            if name not in present:
                raise SnapshotCorruptError(f"{path} of {self.handle} is missing")
            if (found := sha256(name)) != self.files[name]:
                raise SnapshotCorruptError(
                    f"{path} of {self.handle} is torn or altered: sha256 is {found}, "
                    f"the manifest has {self.files[name]}"
                )

    def _body(self) -> dict[str, Any]:
        # what has no value isn't written, so that a manifest of an earlier version keeps its digest
        optional = ("expires_at", "spec")
        fields = {name: value for name, value in asdict(self).items() if value is not None or name not in optional}
        return {"format": FORMAT, **fields}


def seal(target: Path, write: Callable[[Path], None], describe: Callable[[dict[str, str]], Manifest]) -> Manifest:
    """Make directory `target` appear complete and on disk, or not at all.

    Args:
        target: Its parent exists.
        write: Writes the files into the folder that it is given.
        describe: Makes the manifest from the files' digests.

    Raises:
        PolicyError: There is such a directory, which stays as it is.
    """
    with drafted(target.parent, target.name) as draft:
        write(draft)
        manifest = describe(digests(draft))
        (draft / MANIFEST).write_text(manifest.dumps(), encoding="utf-8")
        for path in _files(draft):
            _sync(path)
        for folder in [*(path for path in draft.rglob("*") if path.is_dir()), draft]:
            _sync(folder)
        try:
            os.rename(draft, target)
        except OSError as error:
            if not target.exists():
                raise
            raise PolicyError(f"{manifest.handle} exists; what is stored is not rewritten") from error
        _sync(target.parent)
    return manifest


def verify(directory: Path, *, where: str | None = None) -> Manifest:
    """Check every file of a sealed directory against its manifest, and return that.

    Args:
        directory: The directory.
        where: What errors call it, if not by its path.

    Raises:
        SnapshotCorruptError: Names the first file that is missing, torn, altered or not of the directory.
    """
    manifest = Manifest.load(directory)
    present = {path.relative_to(directory).as_posix() for path in _files(directory)} - {MANIFEST}
    try:
        manifest.check(present, lambda name: _sha256(directory / name), where or str(directory))
    except FileNotFoundError as error:  # it was there just before
        raise SnapshotCorruptError(f"{error.filename} of {manifest.handle} is missing") from error
    return manifest


def discard(directory: Path) -> None:
    """Delete a directory so that no reader finds half of it under its name, and what is left of it from before.

    Nothing happens where it is gone. After an error, or in a process that is killed, files may be left under another
    name; deleting it again deletes those.
    """
    aside = directory.with_name(f"{_GONE}{directory.name}")
    _remove(aside)
    with contextlib.suppress(FileNotFoundError):  # several may delete it at once
        os.rename(directory, aside)
    _remove(aside)


def _remove(folder: Path) -> None:
    while folder.exists():
        with contextlib.suppress(FileNotFoundError):  # another one removes it, too
            shutil.rmtree(folder)


@contextmanager
def drafted(parent: Path, name: str) -> Generator[Path]:
    """An empty folder below `parent` under a passing name, of which nothing stays but what is moved out of it."""
    with contextlib.ExitStack() as stack:
        folder = None
        while folder is None:  # one that was swept before it was held is made again
            folder = _held_folder(parent, stack)
        stack.callback(_remove, folder)
        draft = folder / name
        draft.mkdir()
        yield draft


def _held_folder(parent: Path, stack: contextlib.ExitStack) -> Path | None:
    folder = Path(tempfile.mkdtemp(prefix=_DRAFT, dir=parent))
    try:
        lock = stack.enter_context((folder / _LOCK).open("xb"))
    except FileNotFoundError:
        return None
    with contextlib.suppress(OSError):  # file systems without locks do without; nothing is swept there
        fcntl.flock(lock, fcntl.LOCK_EX)
    return folder if (folder / _LOCK).exists() else None


def sweep(parent: Path) -> None:
    """Remove what writers and deleters that were killed left half done below a folder; what is being written stays."""
    for gone in parent.glob(f"{_GONE}*"):
        _remove(gone)
    for folder in parent.glob(f"{_DRAFT}*"):
        with contextlib.suppress(FileNotFoundError):  # its writer is done
            _sweep_draft(folder)


def _sweep_draft(folder: Path) -> None:
    with contextlib.suppress(OSError):  # it isn't empty
        folder.rmdir()
    with (folder / _LOCK).open("r+b") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
        _remove(folder)


def _files(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if not path.is_dir()]


def digests(directory: Path) -> dict[str, str]:
    """The sha256 of every file below a directory, by relative path."""
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
