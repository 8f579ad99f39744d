"""A session's timeline in the trace event format that Perfetto and Chrome read."""

from __future__ import annotations

from typing import Any

from tinker_actors.gateway.record_kinds import SessionRecord
from tinker_actors.gateway.records import Records


def trace_of(session_id: str, records: Records) -> dict[str, Any]:
    """What a session made, and when: spans of the session and its models, moments of samplers and checkpoints.

    Times are in microseconds since the session began.
    """
    session = records.sessions.get(session_id)
    if session is None:
        return {"traceEvents": []}
    events = [_span("session", session.session_id, session.created_at, _end(session), session)]
    for model in records.models.where("session_id = ?", session_id, order="created_at"):
        events.append(_span("model", model.model_id, model.created_at, model.freed_at or model.used_at, session))
        for checkpoint in records.checkpoints.where("model_id = ?", model.model_id, order="created_at"):
            events.append(_moment("checkpoint", checkpoint.path, checkpoint.created_at, session))
    for sampler in records.samplers.where("session_id = ?", session_id, order="created_at"):
        events.append(_moment("sampler", sampler.sampler_id, sampler.created_at, session))
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _end(session: SessionRecord) -> float:
    return session.ended_at or session.seen_at


def _span(kind: str, name: str, start: float, end: float, session: SessionRecord) -> dict[str, Any]:
    place = _place(kind, name, start, session)
    return {**place, "ph": "X", "dur": max(0, round((end - start) * 1e6))}


def _moment(kind: str, name: str, at: float, session: SessionRecord) -> dict[str, Any]:
    return {**_place(kind, name, at, session), "ph": "i", "s": "p"}


def _place(kind: str, name: str, at: float, session: SessionRecord) -> dict[str, Any]:
    tracks = {"session": 0, "model": 1, "checkpoint": 2, "sampler": 3}
    when = max(0, round((at - session.created_at) * 1e6))
    return {"name": name, "cat": kind, "pid": session.session_id, "tid": tracks[kind], "ts": when}
