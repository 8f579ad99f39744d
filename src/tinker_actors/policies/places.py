"""Where sealed directories lie: what a store asks of a local folder or of an object store."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from tinker_actors.policies.handles import Handle, HandleKind, PolicyId
from tinker_actors.policies.sealing import Manifest

PINS = ".pins"
"""Below a policy's folder; holds an empty file for each pin, `<kind>/<name>`."""


class Place(Protocol):
    """Sealed directories, `<root>/<policy id>/<handle kind>/<name>`."""

    @property
    def root(self) -> Path | str:
        """The folder's absolute path, or the URL."""
        ...

    def policies(self) -> Sequence[PolicyId]:
        """Policies that have something here, in any order."""
        ...

    def names(self, policy_id: PolicyId, kind: HandleKind) -> Sequence[str]:
        """What of a policy and kind is here, in ascending order."""
        ...

    def manifests(self, policy_id: PolicyId, kind: HandleKind) -> Sequence[Manifest]:
        """The manifests of all of a policy and kind.

        Raises:
            SnapshotCorruptError: One is torn or altered.
        """
        ...

    def manifest(self, handle: Handle) -> Manifest | None:
        """What a directory's manifest says; None if there is no such directory.

        Raises:
            SnapshotCorruptError: The manifest is missing, torn or altered.
        """
        ...

    def where(self, handle: Handle) -> str:
        """A directory's absolute path or URL."""
        ...

    def take_number(self, policy_id: PolicyId, kind: HandleKind) -> int:
        """The next number of a policy and kind, taken for good before it is returned."""
        ...

    def seal(
        self, handle: Handle, write: Callable[[Path], None], describe: Callable[[dict[str, str]], Manifest]
    ) -> Manifest:
        """Make a directory appear complete or not at all; see `sealing.seal`."""
        ...

    def fetch(self, handle: Handle) -> Path:
        """A directory as a local one whose files were checked against its manifest; to be read only.

        Raises:
            UnknownPolicyError: It is gone.
            SnapshotCorruptError: Names the first file that is missing, torn, altered or not of the directory.
        """
        ...

    def discard(self, handle: Handle) -> None:
        """Delete a directory, so that no reader finds half of it under its name, and its pin; it may be gone."""
        ...

    def sweep(self) -> None:
        """Remove what writers that were killed left, as far as it can be told from what is being written."""
        ...

    def pins(self, policy_id: PolicyId, kind: HandleKind) -> frozenset[str]:
        """Names of what is pinned."""
        ...

    def pin(self, handle: Handle, *, pinned: bool) -> None:
        """Pin a directory, or take the pin away."""
        ...


def place_of(root: str | os.PathLike[str]) -> Place:
    """The place that a path or URL names.

    Raises:
        ConfigError: The URL is of a kind that isn't known, or whose package isn't installed.
    """
    text = os.fspath(root)
    scheme, separator, rest = text.partition("://")
    if separator and scheme != "file":
        from tinker_actors.policies.remote_place import RemotePlace

        return RemotePlace(text)
    from tinker_actors.policies.local_place import LocalPlace

    return LocalPlace(Path(rest if separator else text))
