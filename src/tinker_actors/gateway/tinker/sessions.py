"""Sessions: a client's presence. What it made in one is freed when the session ends or nothing is heard of it."""

from __future__ import annotations

import time
import uuid
from typing import Any, Literal

from fastapi import APIRouter
from starlette.responses import Response

from tinker_actors.gateway.caller import CallerOf, needs
from tinker_actors.gateway.gateway_of import GatewayOf
from tinker_actors.gateway.record_kinds import SessionRecord
from tinker_actors.gateway.refusals import RefusalError
from tinker_actors.gateway.tinker.shared import Body
from tinker_actors.gateway.writing import json_response

router = APIRouter(dependencies=[needs("train", "sample")])


class CreateSession(Body):
    """What a client says of itself."""

    tags: tuple[str, ...] = ()
    user_metadata: dict[str, Any] | None = None
    sdk_version: str = ""
    project_id: str | None = None
    display_name: str | None = None


class Heartbeat(Body):
    """That a client lives."""

    session_id: str


class EndReason(Body):
    """How a session ended, as its client sees it."""

    type: Literal["success", "errored", "interrupted"] = "success"


class Finish(Body):
    """The end of a session."""

    reason: EndReason = EndReason()
    detail: str | None = None


@router.post("/create_session")
async def create_session(body: CreateSession, caller: CallerOf, gateway: GatewayOf) -> Response:
    """Begin a session."""
    now = time.time()
    record = SessionRecord(
        session_id=str(uuid.uuid4()),
        tenant=caller.tenant,
        created_at=now,
        seen_at=now,
        sdk_version=body.sdk_version,
        tags=body.tags,
        user_metadata=body.user_metadata or {},
        display_name=body.display_name,
        project=body.project_id,
    )
    gateway.records.sessions.put(record)
    return json_response({"type": "create_session", "session_id": record.session_id})


@router.post("/session_heartbeat")
async def session_heartbeat(body: Heartbeat, caller: CallerOf, gateway: GatewayOf) -> Response:
    """Hear that a session's client lives; 410 tells it to stop saying so."""
    record = gateway.records.session(caller, body.session_id)
    if record.ended_at is not None:
        raise RefusalError(410, f"session {body.session_id!r} has ended: {record.ended}", code="session_ended")
    gateway.records.sessions.update(body.session_id, seen_at=time.time())
    return json_response({"type": "session_heartbeat"})


@router.post("/sessions/{session_id}/finish")
async def finish_session(session_id: str, body: Finish, caller: CallerOf, gateway: GatewayOf) -> Response:
    """End a session."""
    if gateway.records.session(caller, session_id).ended_at is None:
        gateway.records.sessions.update(
            session_id, ended_at=time.time(), ended=body.reason.type, ended_detail=body.detail
        )
        await gateway.training.end_session(session_id)
    return json_response({})


@router.post("/telemetry")
async def telemetry() -> Response:
    """What the client's library reports of itself; nothing is kept of it."""
    return json_response({"status": "accepted"})
