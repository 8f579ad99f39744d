"""Training runs: the models that a tenant made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter
from starlette.responses import Response

from tinker_actors.gateway.caller import Caller, CallerOf, needs
from tinker_actors.gateway.gateway_of import GatewayOf
from tinker_actors.gateway.record_kinds import CheckpointRecord, ModelRecord
from tinker_actors.gateway.tinker.checkpoints import checkpoints_of, told
from tinker_actors.gateway.tinker.pages import Limit, Offset, Scope, cursor, moment, texts
from tinker_actors.gateway.writing import json_response

if TYPE_CHECKING:
    from tinker_actors.gateway.gateway import Gateway

router = APIRouter(dependencies=[needs("read", "train", "sample")])


@router.get("/training_runs")
async def list_runs(
    caller: CallerOf,
    gateway: GatewayOf,
    limit: Limit = 20,
    offset: Offset = 0,
    access_scope: Scope = "owned",
    project_id: str | None = None,
) -> Response:
    """The tenant's training runs, the newest first; `accessible` are also those with public checkpoints."""
    condition, values = "tenant = ?", [caller.tenant]
    if access_scope == "accessible":
        condition = f"({condition} OR model_id IN (SELECT model_id FROM checkpoints WHERE public))"
    if project_id is not None:
        condition += " AND session_id IN (SELECT session_id FROM sessions WHERE project = ?)"
        values.append(project_id)
    table = gateway.records.models
    found = table.where(condition, *values, order="created_at DESC, model_id", limit=limit, offset=offset)
    where = cursor(offset=offset, limit=limit, total=table.count(condition, *values))
    return json_response({"training_runs": [_told(model, caller, gateway) for model in found], "cursor": where})


@router.get("/training_runs/{model_id}")
async def get_run(model_id: str, caller: CallerOf, gateway: GatewayOf, access_scope: Scope = "owned") -> Response:
    """One training run: the tenant's, or, if so asked, one with a public checkpoint."""
    model = gateway.records.models.get(model_id)
    if model is None or access_scope == "owned" or not checkpoints_of(model_id, caller, gateway):
        model = gateway.records.model(caller, model_id)
    return json_response(_told(model, caller, gateway))


def _told(model: ModelRecord, caller: Caller, gateway: Gateway) -> dict[str, Any]:
    checkpoints = checkpoints_of(model.model_id, caller, gateway)
    return {
        "training_run_id": model.model_id,
        "base_model": model.base_model,
        "model_owner": model.tenant,
        "is_lora": True,
        "lora_rank": model.rank,
        "corrupted": False,
        "last_request_time": moment(model.used_at),
        "last_checkpoint": _last(checkpoints, "training"),
        "last_sampler_checkpoint": _last(checkpoints, "sampler"),
        "user_metadata": texts(model.user_metadata),
    }


def _last(checkpoints: Sequence[CheckpointRecord], kind: str) -> dict[str, Any] | None:
    return next((told(record) for record in reversed(checkpoints) if record.kind == kind), None)
