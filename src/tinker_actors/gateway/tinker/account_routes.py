"""What a tenant did and used, and who it is."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal, TypeAlias

from fastapi import APIRouter
from pydantic import AwareDatetime
from starlette.responses import Response

from tinker_actors.gateway.accounts import HOUR
from tinker_actors.gateway.admission import Admission
from tinker_actors.gateway.caller import CallerOf, needs
from tinker_actors.gateway.gateway_of import GatewayOf
from tinker_actors.gateway.record_kinds import UsageKind, UsageRecord
from tinker_actors.gateway.refusals import RefusalError
from tinker_actors.gateway.tinker.pages import moment, texts
from tinker_actors.gateway.tokens import urn
from tinker_actors.gateway.writing import json_response

router = APIRouter()

Events: TypeAlias = Literal["all", "checkpoints", "projects", "teams", "organizations"]

_LONGEST = timedelta(days=14)
_DAY = 86400
_GIGABYTE = 2**30

_KINDS: Mapping[UsageKind, dict[str, Any]] = {
    "trained": {"type": "training"},
    "prompt": {"type": "sampling_prefill", "cached": False},
    "cached": {"type": "sampling_prefill", "cached": True},
    "sampled": {"type": "sampling_sample"},
    "checkpoints": {"type": "checkpoint"},
}


@router.get("/audit", dependencies=[needs("read")])
async def audit(caller: CallerOf, gateway: GatewayOf, event_type: Events = "all", day: date | None = None) -> Response:
    """What happened to the tenant's checkpoints on one day in UTC; there is nothing else that is written down."""
    start = datetime.combine(day or datetime.now(UTC).date(), datetime.min.time(), UTC)
    found = gateway.records.audit.where(
        "tenant = ? AND at >= ? AND at < ?",
        caller.tenant,
        start.timestamp(),
        start.timestamp() + _DAY,
        order="at",
    )
    entries = [
        {
            "timestamp": moment(entry.at),
            "event": entry.event,
            "event_details": {**entry.details, "key": entry.key, "tinker_path": entry.path},
            "model_id": entry.path.removeprefix("tinker://").partition("/")[0],
            "tinker_path": entry.path,
            "purpose": entry.details.get("purpose"),
        }
        for entry in found
    ]
    return json_response({"entries": entries if event_type in ("all", "checkpoints") else []})


@router.get("/billing/usage/events", dependencies=[needs("read")])
async def usage(
    starting_on: AwareDatetime, ending_before: AwareDatetime, caller: CallerOf, gateway: GatewayOf
) -> Response:
    """What the tenant used, by the hour; nothing has a price."""
    if not timedelta() < ending_before - starting_on <= _LONGEST:
        raise RefusalError(
            400,
            f"ending_before is {ending_before.isoformat()}; a time after starting_on, by at most 14 days, is needed",
            code="invalid_request",
        )
    found = gateway.records.usage.where(
        "tenant = ? AND hour >= ? AND hour < ?",
        caller.tenant,
        starting_on.timestamp(),
        ending_before.timestamp(),
        order="hour, count DESC",
    )
    sessions = {record.session_id: gateway.records.sessions.get(record.session_id) for record in found}
    projects = {name: session.project for name, session in sessions.items() if session is not None}
    attributes = {
        name: {"user_metadata": texts(session.user_metadata)} for name, session in sessions.items() if session
    }
    events = [_event(record, projects.get(record.session_id)) for record in found]
    return json_response({"data": events, "sessions": attributes, "cost_data_through": None})


@router.get("/billing/usage/checkpoints/current", dependencies=[needs("read")])
async def storage(caller: CallerOf, gateway: GatewayOf, project_id: str | None = None) -> Response:
    """How many checkpoints the tenant has and how large they are, by project."""
    sessions = gateway.records.sessions.where("tenant = ?", caller.tenant)
    projects = {session.session_id: session.project for session in sessions}
    held: dict[str | None, list[int]] = {}
    for record in gateway.records.checkpoints.where("tenant = ?", caller.tenant):
        project = projects.get(record.model_id.partition(":")[0])
        if project_id in (None, project):
            held.setdefault(project, []).append(record.size)
    items = [
        {
            "project_id": project,
            "org_user_urn": urn(caller.tenant),
            "checkpoint_count": len(sizes),
            "size_bytes": sum(sizes),
            "size_gigabytes": sum(sizes) / _GIGABYTE,
        }
        for project, sizes in held.items()
    ]
    return json_response({"data": items, "effective_rate_usd_per_gigabyte_month": None})


@router.get("/auth/apikey/me")
async def own_key(caller: CallerOf) -> Response:
    """Whose key the request came with, for `tinker auth login`."""
    details = {"org_details": {"name": caller.tenant}, "user_details": {"email": f"{caller.tenant}@localhost"}}
    number = int.from_bytes(caller.key.encode()[:6], "big")
    return json_response({"key_id": number, "name": caller.key, "note": caller.tenant, "details": details})


@router.delete("/auth/apikey/me")
async def delete_own_key(caller: CallerOf) -> Response:
    """Refused: keys are the operator's to revoke."""
    raise RefusalError(
        403, f"key {caller.key!r} can't revoke itself; `tinker-actors keys revoke` does", code="not_supported"
    )


@router.post("/auth/token")
async def token(caller: CallerOf, gateway: GatewayOf) -> Response:
    """A short-lived token that stands for the key that the request came with, or the token."""
    if not isinstance(gateway.admit, Admission):
        raise RefusalError(
            400,
            "this service has no API keys of its own for a token to stand for; send what it takes itself",
            code="not_supported",
        )
    return json_response({"jwt": gateway.admit.tokens.issue(caller)})


def _event(record: UsageRecord, project: str | None) -> dict[str, Any]:
    counted = "count" if record.kind == "checkpoints" else "token_count"
    return {
        "bucket_start": moment(record.hour),
        "bucket_end": moment(record.hour + HOUR),
        "base_model": record.base_model,
        "user_id": urn(record.tenant),
        "session_id": record.session_id,
        "project_id": project,
        "event_info": {**_KINDS[record.kind], counted: record.count},
    }
