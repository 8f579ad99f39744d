"""Snapshots and checkpoints whose weights lie at a Tinker service: what the store here keeps is the path there."""

from __future__ import annotations

import json
from pathlib import Path

from tinker_actors.policies.handles import Handle
from tinker_actors.policies.snapshot import Snapshot
from tinker_actors.policies.store import SnapshotStore

PATH_FILE = "service.json"
"""The only file of such a directory beside its manifest."""


def write_path(path: str, folder: Path) -> None:
    """Write what a snapshot's directory holds in place of weights.

    Raises:
        PolicyError: The path is none of a service's.
    """
    Handle.parse(path)
    (folder / PATH_FILE).write_text(json.dumps({"path": path}) + "\n", encoding="utf-8")


def path_at_service(store: SnapshotStore, snapshot: Snapshot) -> str | None:
    """The path by which a service knows a snapshot or checkpoint of the store; None if its weights lie in the store.

    Raises:
        UnknownPolicyError: It is gone from the store.
        SnapshotCorruptError: Its directory isn't as it was written.
    """
    if PATH_FILE not in store.manifest(snapshot.handle).files:
        return None
    return str(json.loads((store.fetch(snapshot) / PATH_FILE).read_text(encoding="utf-8"))["path"])
