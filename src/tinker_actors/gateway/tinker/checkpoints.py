"""Checkpoints: listing, publishing, their time to live, deleting and copying."""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Header, Request
from starlette.responses import Response

from tinker_actors.gateway.caller import Caller, CallerOf, needs
from tinker_actors.gateway.gateway_of import GatewayOf
from tinker_actors.gateway.record_kinds import CheckpointRecord, ModelRecord, SessionRecord
from tinker_actors.gateway.records import LIVING
from tinker_actors.gateway.refusals import RefusalError
from tinker_actors.gateway.tinker.pages import Limit, Offset, cursor, moment, texts
from tinker_actors.gateway.tinker.reading import find_by, readers
from tinker_actors.gateway.tinker.shared import Body, Large
from tinker_actors.gateway.writing import json_response
from tinker_actors.policies import PolicySpec, SnapshotStore

if TYPE_CHECKING:
    from tinker_actors.gateway.gateway import Gateway

router = APIRouter()

SHORTEST_TTL = 3600
LONGEST_TTL = 10 * 366 * 86400

NOTHING = 204


class Ttl(Body):
    """How long a checkpoint stays from now on; None for ever."""

    ttl_seconds: int | None = None


class WeightsInfo(Body):
    """Which checkpoint."""

    tinker_path: str


class CopyWeights(Body):
    """What is copied, and to where: a slot of a session, or a project."""

    source_path: str
    session_id: str | None = None
    model_seq_id: Large | None = None
    destination_project_id: str | None = None
    ttl_seconds: int | None = None
    weights_access_token: str | None = None


@router.get("/checkpoints", dependencies=[needs("read", "train", "sample")])
async def list_all(caller: CallerOf, gateway: GatewayOf, limit: Limit = 100, offset: Offset = 0) -> Response:
    """The tenant's checkpoints, the newest first."""
    condition, values = f"tenant = ? AND {LIVING}", (caller.tenant, time.time())
    table = gateway.records.checkpoints
    found = table.where(condition, *values, order="created_at DESC, path", limit=limit, offset=offset)
    where = cursor(offset=offset, limit=limit, total=table.count(condition, *values))
    return json_response({"checkpoints": [told(record) for record in found], "cursor": where})


@router.get("/training_runs/{model_id}/checkpoints", dependencies=[needs("read", "train", "sample")])
async def list_of_run(model_id: str, caller: CallerOf, gateway: GatewayOf) -> Response:
    """The checkpoints of one training run; of another tenant's those that are public."""
    found = checkpoints_of(model_id, caller, gateway)
    if not found:
        gateway.records.model(caller, model_id)
    return json_response({"checkpoints": [told(record) for record in found], "cursor": None})


@router.post("/training_runs/{model_id}/checkpoints/{segment}/{checkpoint}/publish", dependencies=[needs("train")])
async def publish(model_id: str, segment: str, checkpoint: str, caller: CallerOf, gateway: GatewayOf) -> Response:
    """Let every tenant read a checkpoint."""
    return _set_public(True, _own(model_id, segment, checkpoint, caller, gateway), caller, gateway)


@router.delete("/training_runs/{model_id}/checkpoints/{segment}/{checkpoint}/publish", dependencies=[needs("train")])
async def unpublish(model_id: str, segment: str, checkpoint: str, caller: CallerOf, gateway: GatewayOf) -> Response:
    """Let no other tenant read a checkpoint any more."""
    return _set_public(False, _own(model_id, segment, checkpoint, caller, gateway), caller, gateway)


@router.put("/training_runs/{model_id}/checkpoints/{segment}/{checkpoint}/ttl", dependencies=[needs("train")])
async def set_ttl(
    model_id: str, segment: str, checkpoint: str, body: Ttl, caller: CallerOf, gateway: GatewayOf
) -> Response:
    """Say how long a checkpoint stays."""
    found = _own(model_id, segment, checkpoint, caller, gateway)
    expires_at = expiry(body.ttl_seconds)
    gateway.checkpoints.set_expiry(found.path, expires_at)
    _note("checkpoint_ttl_set", found, caller, gateway, ttl_seconds=body.ttl_seconds)
    return Response(status_code=NOTHING)


@router.delete("/training_runs/{model_id}/checkpoints/{segment}/{checkpoint}", dependencies=[needs("train")])
async def delete(model_id: str, segment: str, checkpoint: str, caller: CallerOf, gateway: GatewayOf) -> Response:
    """Delete a checkpoint."""
    found = _own(model_id, segment, checkpoint, caller, gateway)
    await gateway.checkpoints.delete(found)
    _note("checkpoint_delete", found, caller, gateway)
    return Response(status_code=NOTHING)


@router.post("/weights_info", dependencies=[needs("read", "train", "sample")])
async def weights_info(body: WeightsInfo, caller: CallerOf, gateway: GatewayOf) -> Response:
    """What one needs to know of a checkpoint to load it."""
    found = gateway.records.checkpoint(caller, body.tinker_path)
    model = gateway.records.models.get(found.model_id)
    told: dict[str, Any] = {"base_model": found.base_model, "is_lora": True, "lora_rank": found.rank}
    if model is not None:
        told["optimizer_config"] = {"type": model.optimizer}
    manifest = await asyncio.to_thread(SnapshotStore(gateway.runtime.store).manifest, found.handle)
    if manifest.spec is not None:
        targets = PolicySpec.from_plain(manifest.spec).targets or ("attention", "mlp")
        told |= {
            "train_attn": "attention" in targets,
            "train_mlp": "mlp" in targets,
            "train_unembed": "unembed" in targets,
        }
    return json_response(told)


@router.post("/copy_weights", dependencies=[needs("train")])
async def copy_weights(
    body: CopyWeights,
    request: Request,
    caller: CallerOf,
    gateway: GatewayOf,
    idempotency: Annotated[str | None, Header(alias="X-Idempotency-Key")] = None,
    token: Annotated[str | None, Header(alias="X-Tinker-Weights-Access-Token")] = None,
) -> Response:
    """Copy a checkpoint; the files are shared, and stay until the last of their checkpoints goes."""
    who = readers(request, caller, token or body.weights_access_token, gateway)
    known = (caller.tenant, idempotency or uuid.uuid4().hex)
    if (path := gateway.checkpoints.copies.get(known)) is None:
        source, more = find_by(who, body.source_path, gateway)
        path = _copy(source, body, caller, gateway)
        gateway.checkpoints.copies.put(known, path)
        _note("checkpoint_copy", source, caller, gateway, copy=path, **more)
    return json_response({"tinker_path": path})


def told(record: CheckpointRecord) -> dict[str, Any]:
    """A checkpoint as clients read it."""
    return {
        "checkpoint_id": record.path.partition(f"{record.model_id}/")[2],
        "checkpoint_type": record.kind,
        "time": moment(record.created_at),
        "tinker_path": record.path,
        "size_bytes": record.size,
        "public": record.public,
        "user_metadata": texts(record.user_metadata),
        "expires_at": moment(record.expires_at),
    }


def checkpoints_of(model_id: str, caller: Caller, gateway: Gateway) -> list[CheckpointRecord]:
    """The checkpoints of a training run that a caller may read, the oldest first."""
    condition, values = f"model_id = ? AND {LIVING}", (model_id, time.time())
    if not caller.sees_all:
        condition, values = f"{condition} AND (tenant = ? OR public)", (*values, caller.tenant)
    return gateway.records.checkpoints.where(condition, *values, order="created_at")


def expiry(ttl_seconds: int | None) -> float | None:
    """When something expires that stays for so long; None for never.

    Raises:
        RefusalError: It is too short or too long.
    """
    if ttl_seconds is None:
        return None
    if not SHORTEST_TTL <= ttl_seconds <= LONGEST_TTL:
        raise _invalid(f"ttl_seconds is {ttl_seconds}; {SHORTEST_TTL} (an hour) to {LONGEST_TTL} (10 years) is needed")
    return time.time() + ttl_seconds


def _own(model_id: str, segment: str, checkpoint: str, caller: Caller, gateway: Gateway) -> CheckpointRecord:
    return gateway.records.checkpoint(caller, f"tinker://{model_id}/{segment}/{checkpoint}", reading=False)


def _set_public(public: bool, found: CheckpointRecord, caller: Caller, gateway: Gateway) -> Response:
    """What is so already stays so: a client that asks twice may not have heard the first answer."""
    if found.public != public:
        gateway.records.checkpoints.update(found.path, public=public)
        _note("checkpoint_publish" if public else "checkpoint_unpublish", found, caller, gateway)
    return Response(status_code=NOTHING)


def _copy(source: CheckpointRecord, body: CopyWeights, caller: Caller, gateway: Gateway) -> str:
    now, segments = time.time(), source.path.split("/")
    expires_at = expiry(body.ttl_seconds)
    into_slot = body.session_id is not None and body.model_seq_id is not None
    if body.session_id is not None and into_slot:
        session = gateway.records.session(caller, body.session_id).session_id
        model_id = f"{session}:train:{body.model_seq_id}"
    elif body.destination_project_id is not None:
        session = str(uuid.uuid4())
        model_id = f"{session}:train:0"
    else:
        raise _invalid("neither destination_project_id nor session_id with model_seq_id is set; one is needed")
    path = "/".join(["tinker:", "", model_id, *segments[3:]])
    taken = gateway.records.models.get(model_id)
    if taken is not None:
        if taken.parent == source.path and gateway.records.checkpoints.get(path) is not None:
            return path
        raise _invalid(f"model_seq_id is {body.model_seq_id}, which is of another training run of the session")
    common: dict[str, Any] = {"tenant": caller.tenant, "session_id": session, "base_model": source.base_model}
    made = SessionRecord(
        session_id=session,
        tenant=caller.tenant,
        created_at=now,
        seen_at=now,
        project=body.destination_project_id,
        ended_at=now,
        ended="success",
    )
    origin = gateway.records.models.get(source.model_id)
    model = ModelRecord(
        **common,
        model_id=model_id,
        rank=source.rank,
        optimizer="adamw" if origin is None else origin.optimizer,
        created_at=now,
        used_at=now,
        user_metadata={} if origin is None else origin.user_metadata,
        parent=source.path,
        freed_at=now,
    )
    copy = replace(source, path=path, tenant=caller.tenant, model_id=model_id, created_at=now, public=False)
    gateway.checkpoints.put_copy(replace(copy, expires_at=expires_at), model, None if into_slot else made)
    return path


def _note(event: str, record: CheckpointRecord, caller: Caller, gateway: Gateway, **details: Any) -> None:
    gateway.accounts.note(record.tenant, event, path=record.path, key=caller.key, by=caller.tenant, **details)


def _invalid(detail: str) -> RefusalError:
    return RefusalError(400, detail, code="invalid_request")
