"""Sealed directories in whatever fsspec reaches by URL: object stores, and file systems of other hosts.

A directory exists once its manifest does, which is written last and deleted first. Nothing is ever renamed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, cast

from tinker_actors.errors import ConfigError, SnapshotCorruptError, StoreError, TinkerActorsError, UnknownPolicyError
from tinker_actors.models.cache import cache_dir
from tinker_actors.policies.fetched import FetchedCopies
from tinker_actors.policies.handles import Handle, HandleKind, PolicyId, folder_of, policy_of
from tinker_actors.policies.places import PINS
from tinker_actors.policies.sealing import MANIFEST, Manifest, digests

TAKEN = ".taken"
"""Below a policy's folder; holds an empty file for each number that was ever given, `<kind>/<number>`."""

_FLAT = frozenset(("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "oci", "memory"))
"""Protocols without folders."""


class RemotePlace:
    """A folder in a file system of fsspec; see `Place`.

    A number is taken by creating its mark, which fails where the mark exists: on S3 and other stores that can create
    exclusively, no two writers get one number. Where the store can't, fsspec looks before it writes, so that one
    writer at a time per policy is needed. The same goes everywhere for two writers of one checkpoint name.
    """

    def __init__(self, url: str) -> None:
        import fsspec  # pyright: ignore[reportMissingTypeStubs]

        self._root = url.rstrip("/")
        try:
            found = cast(Any, fsspec.core).url_to_fs(self._root)
        except ImportError as error:
            hint = " (pip install 'tinker-actors[s3]')" if url.startswith(("s3://", "s3a://")) else ""
            raise ConfigError(f"the store {url} needs a package that is not installed{hint}: {error}") from error
        except ValueError as error:
            raise ConfigError(f"the store {url} can't be used: {error}") from error
        except OSError as error:  # some connect at once
            raise StoreError(f"the store {url} can't be reached: {error}") from error
        self._fs: Any = found[0]
        self._base = str(found[1])
        protocols = self._fs.protocol
        self._flat = not _FLAT.isdisjoint((protocols,) if isinstance(protocols, str) else protocols)
        self._copies = FetchedCopies(cache_dir() / "snapshots")

    @property
    def root(self) -> str:
        """The URL."""
        return self._root

    def policies(self) -> list[PolicyId]:
        """Policies that have something here."""
        with self._asked("list"), contextlib.suppress(FileNotFoundError):
            self._fs.invalidate_cache()
            entries = cast(list[dict[str, Any]], self._fs.ls(self._base, detail=True))
            folders = [_last(str(entry["name"])) for entry in entries if entry["type"] == "directory"]
            return [policy_id for name in folders if (policy_id := policy_of(name)) is not None]
        return []

    def names(self, policy_id: PolicyId, kind: HandleKind) -> list[str]:
        """What of a policy and kind is here."""
        below = f"{self._base}/{folder_of(policy_id)}/{kind}"
        parts = [path.split("/") for path in self._find(below)]
        return sorted(part[0] for part in parts if part[1:] == [MANIFEST])

    def manifests(self, policy_id: PolicyId, kind: HandleKind) -> list[Manifest]:
        """The manifests of all of a policy and kind."""
        handles = [Handle(policy_id=policy_id, kind=kind, name=name) for name in self.names(policy_id, kind)]
        paths = {handle: f"{self._path(handle)}/{MANIFEST}" for handle in handles}
        if not paths:
            return []
        with self._asked("read manifests of"):
            found = cast(dict[str, Any], self._fs.cat(list(paths.values()), on_error="return"))
            contents = {handle: found[path] for handle, path in paths.items()}
            for value in contents.values():
                if isinstance(value, Exception) and not isinstance(value, FileNotFoundError):
                    raise value
        # one that is gone was deleted between the two looks
        return [
            Manifest.loads(value, f"{self.where(handle)}/{MANIFEST}")
            for handle, value in contents.items()
            if isinstance(value, bytes)
        ]

    def manifest(self, handle: Handle) -> Manifest | None:
        """What a directory's manifest says."""
        with self._asked("read"), contextlib.suppress(FileNotFoundError):
            content = self._fs.cat_file(f"{self._path(handle)}/{MANIFEST}")
            return Manifest.loads(content, f"{self.where(handle)}/{MANIFEST}")
        return None

    def where(self, handle: Handle) -> str:
        """A directory's URL."""
        return f"{self.root}/{folder_of(handle.policy_id)}/{handle.kind}/{handle.name}"

    def take_number(self, policy_id: PolicyId, kind: HandleKind) -> int:
        """The next number, marked as taken before it is returned."""
        folder = f"{self._base}/{folder_of(policy_id)}/{TAKEN}/{kind}"
        number = max((int(name) for name in self._find(folder) if name.isdecimal()), default=0) + 1
        while True:
            try:
                with self._asked("take a number in", writing=True):
                    self._make(folder)
                    self._fs.pipe_file(f"{folder}/{number:06d}", b"", mode="create")
                return number
            except FileExistsError:
                number += 1

    def seal(
        self, handle: Handle, write: Callable[[Path], None], describe: Callable[[dict[str, str]], Manifest]
    ) -> Manifest:
        """Upload a directory, its manifest last; the local copy that it was made from stays in the cache."""

        def fill(draft: Path) -> Manifest:
            write(draft)
            return describe(digests(draft))

        manifest, copy = self._copies.build(fill, self.where(handle))
        folder = self._path(handle)
        try:
            with self._asked("write to", writing=True):
                # a killed writer of the same checkpoint name may have left files
                self._remove(folder)
                for parent in sorted({f"{folder}/{name}".rpartition("/")[0] for name in manifest.files}):
                    self._make(parent)
                for name in manifest.files:
                    self._fs.put_file(str(copy / name), f"{folder}/{name}")
                self._fs.pipe_file(f"{folder}/{MANIFEST}", manifest.dumps().encode())
        except BaseException:  # whatever it was, nothing without a manifest stays where that can be helped
            with contextlib.suppress(Exception):
                self._remove(folder)
            self._copies.drop(manifest)
            raise
        return manifest

    def fetch(self, handle: Handle) -> Path:
        """A local copy, made at the first time, checked every time."""
        manifest, where = self.manifest(handle), self.where(handle)
        if manifest is None:
            raise UnknownPolicyError(f"{handle} is gone from {where}")
        if (held := self._copies.get(manifest)) is not None:
            return held
        try:
            return self._copied(manifest, self._path(handle), where)
        except SnapshotCorruptError:
            if self.manifest(handle) is None:  # it was deleted meanwhile
                raise UnknownPolicyError(f"{handle} is gone from {where}") from None
            raise

    def _copied(self, manifest: Manifest, folder: str, where: str) -> Path:
        present = {name for name in self._find(folder) if name != MANIFEST}
        manifest.check(present, lambda name: manifest.files[name], where)

        def fill(draft: Path) -> Manifest:
            with self._asked("read"):
                for name in manifest.files:
                    (draft / name).parent.mkdir(parents=True, exist_ok=True)
                    self._fs.get_file(f"{folder}/{name}", str(draft / name))
            return manifest

        try:
            return self._copies.build(fill, where)[1]
        except FileNotFoundError as error:
            raise SnapshotCorruptError(f"a file of {manifest.handle} in {where} is missing: {error}") from error

    def discard(self, handle: Handle) -> None:
        """Delete a directory, its manifest first, and its pin."""
        self.pin(handle, pinned=False)
        with contextlib.suppress(SnapshotCorruptError):
            if (manifest := self.manifest(handle)) is not None:
                self._copies.drop(manifest)
        with self._asked("delete from"):
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(f"{self._path(handle)}/{MANIFEST}")
            self._remove(self._path(handle))

    def sweep(self) -> None:
        """Nothing: an upload that was given up looks like one under way."""

    def pins(self, policy_id: PolicyId, kind: HandleKind) -> frozenset[str]:
        """Names of what is pinned."""
        return frozenset(self._find(f"{self._base}/{folder_of(policy_id)}/{PINS}/{kind}"))

    def pin(self, handle: Handle, *, pinned: bool) -> None:
        """Pin a directory, or take the pin away."""
        folder = f"{self._base}/{folder_of(handle.policy_id)}/{PINS}/{handle.kind}"
        with self._asked("pin in"), contextlib.suppress(FileNotFoundError):
            if pinned:
                self._make(folder)
                self._fs.pipe_file(f"{folder}/{handle.name}", b"")
            elif self._fs.exists(f"{folder}/{handle.name}"):
                self._fs.rm_file(f"{folder}/{handle.name}")

    def _path(self, handle: Handle) -> str:
        return f"{self._base}/{folder_of(handle.policy_id)}/{handle.kind}/{handle.name}"

    def _find(self, folder: str) -> list[str]:
        """Paths of all files below a folder, relative to it."""
        with self._asked("list"), contextlib.suppress(FileNotFoundError):
            self._fs.invalidate_cache()
            found = cast(list[str], self._fs.find(folder))
            prefix = f"{folder.strip('/')}/"
            return [path.strip("/").removeprefix(prefix) for path in found]
        return []

    def _make(self, folder: str) -> None:
        """Make a folder where there are such things; in an object store it could only make a bucket."""
        if not self._flat:
            self._fs.makedirs(folder, exist_ok=True)

    def _remove(self, folder: str) -> None:
        if paths := self._find(folder):
            self._fs.rm([f"{folder}/{path}" for path in paths])
            if not self._flat:
                self._fs.rm(folder, recursive=True)

    @contextlib.contextmanager
    def _asked(self, what: str, *, writing: bool = False) -> Generator[None]:
        """The boundary to other people's file systems, whose errors are of any type.

        That something isn't there is an answer when it is read, and an error of the store when it is written.
        """
        try:
            yield
        except (TinkerActorsError, FileExistsError):
            raise
        except Exception as error:  # each file system raises its own types; from here on they are ours
            if isinstance(error, FileNotFoundError) and not writing:
                raise
            raise StoreError(f"can't {what} the store {self.root}: {error or type(error).__name__}") from error


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
