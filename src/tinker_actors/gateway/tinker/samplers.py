"""Sampling sessions: what a client samples from."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter
from starlette.responses import Response

from tinker_actors.gateway.caller import Caller, CallerOf, needs
from tinker_actors.gateway.gateway_of import GatewayOf
from tinker_actors.gateway.record_kinds import SamplerRecord
from tinker_actors.gateway.refusals import RefusalError
from tinker_actors.gateway.tinker.reading import note_read
from tinker_actors.gateway.tinker.shared import Body, Large
from tinker_actors.gateway.writing import json_response

if TYPE_CHECKING:
    from tinker_actors.gateway.gateway import Gateway

router = APIRouter()


class CreateSamplingSession(Body):
    """What a client wants to sample from: a base model, or a checkpoint."""

    session_id: str
    sampling_session_seq_id: Large
    base_model: str | None = None
    model_path: str | None = None


class JoinSamplingSession(Body):
    """A client's copy that wants sequence numbers of its own."""

    sampling_session_id: str


@router.post("/create_sampling_session", dependencies=[needs("sample")])
async def create_sampling_session(body: CreateSamplingSession, caller: CallerOf, gateway: GatewayOf) -> Response:
    """Make a sampling session; asking again for the same one gives it again."""
    session = gateway.records.session(caller, body.session_id)
    sampler_id = f"{session.session_id}:sample:{body.sampling_session_seq_id}"
    found = gateway.records.samplers.get(sampler_id)
    if found is None:
        found = _sampler(body, sampler_id, caller, gateway)
        gateway.records.samplers.put(found)
    elif (found.path, body.base_model or found.base_model) != (body.model_path, found.base_model):
        raise RefusalError(
            400,
            f"sampling_session_seq_id is {body.sampling_session_seq_id}, which is of {found.path or found.base_model}",
            code="invalid_request",
        )
    return json_response({"type": "create_sampling_session", "sampling_session_id": sampler_id})


@router.get("/samplers/{sampler_id:path}", dependencies=[needs("sample", "read")])
async def get_sampler(sampler_id: str, caller: CallerOf, gateway: GatewayOf) -> Response:
    """What a sampling session samples from."""
    found = gateway.records.sampler(caller, sampler_id)
    return json_response({"sampler_id": sampler_id, "base_model": found.base_model, "model_path": found.path})


@router.post("/join_sampling_session", dependencies=[needs("sample")])
async def join_sampling_session(body: JoinSamplingSession, caller: CallerOf, gateway: GatewayOf) -> Response:
    """Number another client of a sampling session; the first is 0."""
    found = gateway.records.sampler(caller, body.sampling_session_id)
    gateway.records.samplers.update(found.sampler_id, clones=found.clones + 1)
    return json_response({"type": "join_sampling_session", "client_counter": found.clones + 1})


def _sampler(body: CreateSamplingSession, sampler_id: str, caller: Caller, gateway: Gateway) -> SamplerRecord:
    common: dict[str, Any] = {"sampler_id": sampler_id, "tenant": caller.tenant, "session_id": body.session_id}
    if body.model_path is None:
        if body.base_model is None:
            raise RefusalError(400, "neither base_model nor model_path is set; one is needed", code="invalid_request")
        gateway.runtime.engines_of(body.base_model)
        return SamplerRecord(**common, base_model=body.base_model, kind="base", created_at=time.time())
    checkpoint = gateway.records.checkpoint(caller, body.model_path)
    if checkpoint.kind == "training":
        raise RefusalError(
            400,
            f"model_path is {body.model_path}, a training checkpoint; one for samplers is needed, which "
            "save_weights_for_sampler makes",
            code="invalid_request",
        )
    checkpoint.check_legible()
    if body.base_model not in (None, checkpoint.base_model):
        raise RefusalError(
            400,
            f"base_model is {body.base_model!r}, but {body.model_path} is of {checkpoint.base_model!r}",
            code="invalid_request",
        )
    gateway.runtime.engines_of(checkpoint.base_model)
    note_read(checkpoint, caller, gateway, purpose="sample")
    return SamplerRecord(
        **common,
        base_model=checkpoint.base_model,
        kind="snapshot",
        created_at=time.time(),
        path=checkpoint.path,
        handle=checkpoint.handle,
        model_id=checkpoint.model_id,
    )


def snapshot_of(sampler: SamplerRecord, caller: Caller, gateway: Gateway) -> str | None:
    """Handle of what a sampling session samples from now; None for the base model itself.

    Raises:
        RefusalError: The checkpoint was deleted or has expired, or is no longer public; names it.
    """
    if sampler.kind == "base":
        return None
    if sampler.path is not None:
        return gateway.records.checkpoint(caller, sampler.path).handle
    handle = sampler.handle
    if sampler.kind == "inflight" and (model := gateway.records.models.get(sampler.model_id or "")) is not None:
        handle = model.inflight
    if handle is None:
        detail = f"the weights of sampling session {sampler.sampler_id!r} went with the session that saved them"
        raise RefusalError(404, detail, code="session_ended")
    return handle
