"""Policy identity: what a policy is made from, its handles, and its numbered snapshots. Loads no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinker_actors.policies.handles import Handle, HandleKind, PolicyId
from tinker_actors.policies.sealing import Manifest
from tinker_actors.policies.spec import PolicyKind, PolicySpec
from tinker_actors.policies.store import Snapshot, SnapshotStore

if TYPE_CHECKING:
    from tinker_actors.policies.registry import PolicyRegistry

__all__ = [
    "Handle",
    "HandleKind",
    "Manifest",
    "PolicyId",
    "PolicyKind",
    "PolicyRegistry",
    "PolicySpec",
    "Snapshot",
    "SnapshotStore",
]


def __getattr__(name: str) -> object:
    # The registry is an actor; reading specs and snapshots needs no actor runtime.
    if name == "PolicyRegistry":
        from tinker_actors.policies.registry import PolicyRegistry

        return PolicyRegistry
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
