"""The page's policies: every snapshot and checkpoint that a caller may know of, and what each grew from."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter
from starlette.responses import Response

from tinker_actors.errors import PolicyError
from tinker_actors.gateway.caller import CallerOf, needs
from tinker_actors.gateway.dashboard.owned import OwnedJob
from tinker_actors.gateway.gateway_of import GatewayOf
from tinker_actors.gateway.writing import json_response
from tinker_actors.policies import Snapshot, SnapshotStore

if TYPE_CHECKING:
    from tinker_actors.gateway.record_kinds import CheckpointRecord, ModelRecord

router = APIRouter(prefix="/dashboard/api")

MOST = 500
"""Snapshots and checkpoints of a policy that are shown: the newest."""

MOST_MODELS = 100
"""Policies of clients that are shown: the newest."""


@router.get("/policies", dependencies=[needs("read", "train", "sample")])
async def of_clients(gateway: GatewayOf, caller: CallerOf) -> Response:
    """The policies that clients of the Tinker API trained and stored, the newest first."""
    of_tenant = () if caller.sees_all else (caller.tenant,)
    condition = "tenant = ?" if of_tenant else "1"
    models = gateway.records.models.where(condition, *of_tenant, order="created_at DESC", limit=MOST_MODELS)
    served = {handle for model in gateway.runtime.engines for handle in gateway.serving.held(model)}
    stored = {model.model_id: gateway.records.checkpoints.where("model_id = ?", model.model_id) for model in models}
    store = SnapshotStore(gateway.runtime.store)
    found = await asyncio.to_thread(lambda: [_model(model, stored[model.model_id], store, served) for model in models])
    return json_response({"policies": found})


def _model(
    model: ModelRecord, checkpoints: list[CheckpointRecord], store: SnapshotStore, served: set[str]
) -> dict[str, Any]:
    checkpoints.sort(key=lambda record: record.created_at)
    paths = {record.handle: record.path for record in checkpoints}
    return {
        "policy": model.model_id,
        "tenant": model.tenant,
        "base_model": model.base_model,
        "rank": model.rank,
        "training": model.freed_at is None,
        "error": None,
        "left_out": max(0, len(checkpoints) - MOST),
        "stored": [_checkpoint(record, model, paths, store, served) for record in checkpoints[-MOST:]],
    }


def _checkpoint(
    record: CheckpointRecord, model: ModelRecord, paths: dict[str, str], store: SnapshotStore, served: set[str]
) -> dict[str, Any]:
    try:
        manifest = store.manifest(record.handle)
        step, parent = manifest.step, manifest.parent
    except PolicyError:  # deleted meanwhile, or kept elsewhere
        step = parent = None
    return {
        "handle": record.path,
        "kind": "checkpoint" if record.kind == "training" else "snapshot",
        "name": record.path.rsplit("/", 1)[-1],
        "step": step,
        "parent": paths.get(parent, parent) if parent else model.parent,
        "created_at": record.created_at,
        "expires_at": record.expires_at,
        "size": record.size,
        "public": record.public,
        "served": record.handle in served,
    }


@router.get("/jobs/{job}/policies", dependencies=[needs("read", "jobs")])
async def of_job(owned: OwnedJob) -> Response:
    """The policies of a job's run folder."""
    return json_response(await asyncio.to_thread(read_store, owned.run.policies))


def read_store(root: Path) -> list[dict[str, Any]]:
    """The policies of a local store, each with its snapshots and checkpoints, oldest first."""
    if not root.is_dir():
        return []
    store = SnapshotStore(root)
    return [_policy(store, policy) for policy in store.policies()]


def _policy(store: SnapshotStore, policy: str) -> dict[str, Any]:
    try:
        stored = [*store.list(policy), *store.list(policy, "weights")]
        pinned = store.pinned(policy) | store.pinned(policy, "weights")
    except PolicyError as error:
        return {"policy": policy, "error": str(error), "stored": [], "left_out": 0}
    stored.sort(key=lambda snapshot: (snapshot.created_at, snapshot.handle))
    return {
        "policy": policy,
        "error": None,
        "stored": [{**describe_snapshot(snapshot), "pinned": snapshot.handle in pinned} for snapshot in stored[-MOST:]],
        "left_out": max(0, len(stored) - MOST),
    }


def describe_snapshot(snapshot: Snapshot) -> dict[str, Any]:
    """A stored snapshot or checkpoint."""
    kind, name = snapshot.handle.rsplit("/", 2)[1:]
    return {
        "handle": snapshot.handle,
        "kind": "checkpoint" if kind == "weights" else "snapshot",
        "name": name,
        "step": snapshot.step,
        "parent": snapshot.parent,
        "created_at": snapshot.created_at,
        "expires_at": snapshot.expires_at,
        "size": _size(Path(snapshot.path)),
    }


def _size(folder: Path) -> int:
    try:
        return sum(path.stat().st_size for path in folder.iterdir())
    except OSError:  # it is gone, or is being deleted
        return 0
