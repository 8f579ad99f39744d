"""Policy identity: what a policy is made from, its handles, and its numbered snapshots. Loads no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinker_actors.lazy import lazy_names
from tinker_actors.policies.handles import Handle, HandleKind, PolicyId
from tinker_actors.policies.retention import Retention
from tinker_actors.policies.sealing import Manifest, Origin
from tinker_actors.policies.snapshot import Snapshot
from tinker_actors.policies.spec import PolicyKind, PolicySpec, Role
from tinker_actors.policies.store import SnapshotStore

if TYPE_CHECKING:
    from tinker_actors.policies.registry import PolicyRegistry

__all__ = [
    "Handle",
    "HandleKind",
    "Manifest",
    "Origin",
    "PolicyId",
    "PolicyKind",
    "PolicyRegistry",
    "PolicySpec",
    "Retention",
    "Role",
    "Snapshot",
    "SnapshotStore",
]

__getattr__ = lazy_names(__name__, {"PolicyRegistry": "registry"})
