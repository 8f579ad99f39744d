"""Looking at sessions: lists, searches, and which project one belongs to."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import AwareDatetime, Field
from starlette.responses import Response

from tinker_actors.gateway.caller import Caller, CallerOf, needs
from tinker_actors.gateway.gateway_of import GatewayOf
from tinker_actors.gateway.record_kinds import SessionRecord
from tinker_actors.gateway.tinker.pages import Limit, Offset, Scope, moment, texts
from tinker_actors.gateway.tinker.shared import Body
from tinker_actors.gateway.writing import json_response

if TYPE_CHECKING:
    from tinker_actors.gateway.gateway import Gateway

router = APIRouter()

_BATCH = 200


class Project(Body):
    """Which project a session goes to."""

    project_id: str


class Owner(Body):
    """Whose sessions are sought."""

    type: Literal["own", "accessible", "user"] = "own"
    owner_urns: list[str] = Field(default_factory=list)


class Status(Body):
    """How sessions that are sought stand."""

    type: Literal["active", "cancelled", "failed", "client_finished"]
    reasons: list[Literal["success", "errored", "interrupted"]] | None = None


class After(Body):
    """Where a page begins: after this session."""

    last_created_at: AwareDatetime
    last_session_id: str


class Search(Body):
    """Which sessions are sought."""

    session_id: str | None = None
    project_ids: list[str] | None = None
    user_metadata: dict[str, str] = Field(default_factory=dict)
    display_name: Annotated[str, Field(min_length=1)] | None = None
    owner: Owner = Owner()
    statuses: list[Status] | None = None
    limit: Annotated[int, Field(ge=1, le=200)] = 50
    cursor: After | None = None

    def finds(self, session: SessionRecord) -> bool:
        """Whether a session is one of those that are sought."""
        if self.session_id is not None or self.display_name is not None:
            name = (session.display_name or "").lower()
            named = self.display_name is not None and all(word in name for word in self.display_name.lower().split())
            if not named and session.session_id != self.session_id:
                return False
        if self.project_ids is not None and session.project not in self.project_ids:
            return False
        if self.owner.type == "user" and session.tenant not in self.owner.owner_urns:
            return False
        if any(str(session.user_metadata.get(name)) != value for name, value in self.user_metadata.items()):
            return False
        return self.statuses is None or any(_stands(session, status) for status in self.statuses)


@router.get("/sessions", dependencies=[needs("read", "train", "sample")])
async def list_sessions(
    caller: CallerOf, gateway: GatewayOf, limit: Limit = 20, offset: Offset = 0, access_scope: Scope = "owned"
) -> Response:
    """The tenant's sessions, the newest first."""
    condition, values = (
        ("1", ()) if caller.sees_all and access_scope == "accessible" else ("tenant = ?", (caller.tenant,))
    )
    found = gateway.records.sessions.where(
        condition, *values, order="created_at DESC, session_id", limit=limit, offset=offset
    )
    return json_response({"sessions": [session.session_id for session in found]})


@router.post("/sessions/search", dependencies=[needs("read", "train", "sample")])
async def search_sessions(body: Search, caller: CallerOf, gateway: GatewayOf) -> Response:
    """Seek sessions, the newest first."""
    page: list[SessionRecord] = []
    more = False
    for session in _newest_first(body, caller, gateway):
        if not body.finds(session):
            continue
        if more := len(page) == body.limit:
            break
        page.append(session)
    after = {"last_created_at": moment(page[-1].created_at), "last_session_id": page[-1].session_id} if more else None
    return json_response({"sessions": [_told(session, gateway) for session in page], "next_cursor": after})


@router.get("/sessions/{session_id}", dependencies=[needs("read", "train", "sample")])
async def get_session(session_id: str, caller: CallerOf, gateway: GatewayOf, access_scope: Scope = "owned") -> Response:
    """What a session made. No session is public: those that are accessible are the tenant's own."""
    session = gateway.records.session(caller, session_id)
    models = gateway.records.models.where("session_id = ?", session_id, order="created_at")
    samplers = gateway.records.samplers.where("session_id = ?", session_id, order="created_at")
    return json_response(
        {
            "training_run_ids": [model.model_id for model in models],
            "sampler_ids": [sampler.sampler_id for sampler in samplers],
            "user_metadata": texts(session.user_metadata),
            "display_name": session.display_name,
        }
    )


@router.put("/sessions/{session_id}/project", dependencies=[needs("train")])
async def set_project(session_id: str, body: Project, caller: CallerOf, gateway: GatewayOf) -> Response:
    """Put a session into a project."""
    session = gateway.records.session(caller, session_id)
    gateway.records.sessions.update(session.session_id, project=body.project_id)
    return Response(status_code=204)


def _newest_first(body: Search, caller: Caller, gateway: Gateway) -> Iterator[SessionRecord]:
    every = caller.sees_all and body.owner.type != "own"
    condition, values = ("1", []) if every else ("tenant = ?", [caller.tenant])
    created_at, session_id = None, ""
    if body.cursor is not None:
        created_at, session_id = _seconds(body.cursor.last_created_at), body.cursor.last_session_id
    while True:
        asked, given = condition, [*values]
        if created_at is not None:
            # the cursor's time has whole microseconds
            asked += " AND (created_at < ? - 1e-6 OR (created_at < ? + 1e-6 AND session_id > ?))"
            given += [created_at, created_at, session_id]
        batch = gateway.records.sessions.where(asked, *given, order="created_at DESC, session_id", limit=_BATCH)
        yield from batch
        if len(batch) < _BATCH:
            return
        created_at, session_id = batch[-1].created_at, batch[-1].session_id


def _seconds(at: datetime) -> float:
    return at.timestamp()


def _stands(session: SessionRecord, status: Status) -> bool:
    if status.type == "active":
        return session.ended_at is None
    if status.type != "client_finished" or session.ended in (None, "expired"):
        return False  # no session here was cancelled, or failed by what is in it
    return status.reasons is None or session.ended in status.reasons


def _told(session: SessionRecord, gateway: Gateway) -> dict[str, Any]:
    held = gateway.records.checkpoints.where(
        "model_id IN (SELECT model_id FROM models WHERE session_id = ?)", session.session_id
    )
    return {
        "session_id": session.session_id,
        "created_at": moment(session.created_at),
        "owner": session.tenant,
        "project_id": session.project or "",
        "status": _status(session),
        "checkpoints_count": len(held),
        "display_name": session.display_name,
        "user_metadata": texts(session.user_metadata),
        "checkpoint_storage_bytes": sum(record.size for record in held),
    }


def _status(session: SessionRecord) -> dict[str, Any] | None:
    if session.ended_at is None:
        return {"type": "active"}
    if session.ended == "expired":
        return None
    return {"type": "client_finished", "reason": {"type": session.ended}, "detail": session.ended_detail}
