"""Weights to take elsewhere: signed addresses, one for each file, that the gateway serves itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import FileResponse, Response

from tinker_actors.gateway.caller import CallerOf, needs
from tinker_actors.gateway.gate import DOWNLOADS
from tinker_actors.gateway.gateway_of import GatewayOf
from tinker_actors.gateway.record_kinds import CheckpointRecord
from tinker_actors.gateway.refusals import RefusalError, not_found
from tinker_actors.gateway.tinker.pages import moment
from tinker_actors.gateway.tinker.reading import note_read
from tinker_actors.gateway.tinker.session_traces import trace_of
from tinker_actors.gateway.writing import json_response
from tinker_actors.policies import SnapshotStore

router = APIRouter()

OPEN_FOR = 3600
"""Seconds for which an address opens."""


@router.get(
    "/training_runs/{model_id}/checkpoints/{segment}/{checkpoint}/external_weights_urls",
    dependencies=[needs("read", "train", "sample")],
)
async def external_weights_urls(
    model_id: str, segment: str, checkpoint: str, request: Request, caller: CallerOf, gateway: GatewayOf
) -> Response:
    """Addresses of the files of weights to take elsewhere, a PEFT directory.

    They need no key, and end in an hour, with the checkpoint, or, given to another tenant, with its publication.
    """
    found = gateway.records.checkpoint(caller, f"tinker://{model_id}/{segment}/{checkpoint}")
    if found.kind != "external":
        detail = f"{found.path} is no checkpoint to take elsewhere; save_weights_external makes one"
        raise RefusalError(400, detail, code="invalid_request")
    manifest = await asyncio.to_thread(SnapshotStore(gateway.runtime.store).manifest, found.handle)
    expires_at = time.time() + OPEN_FOR
    if found.expires_at is not None:
        expires_at = min(expires_at, found.expires_at)
    own = found.tenant == caller.tenant or caller.sees_all
    opens = {"path": found.path, "handle": found.handle, "own": own}
    urls = {
        file: _address(request, gateway.signer.sign({**opens, "file": file}, expires_at=expires_at))
        for file in sorted(manifest.files)
    }
    note_read(found, caller, gateway, purpose="external")
    return json_response({"urls": urls, "expires": moment(expires_at)})


@router.get("/sessions/{session_id}/trace_export", dependencies=[needs("read", "train", "sample")])
async def trace_export(session_id: str, request: Request, caller: CallerOf, gateway: GatewayOf) -> Response:
    """The address of a session's timeline, which Perfetto shows."""
    found = gateway.records.session(caller, session_id)
    token = gateway.signer.sign({"trace": found.session_id}, expires_at=time.time() + OPEN_FOR)
    return json_response({"status": "ready", "url": _address(request, token)})


@router.get(DOWNLOADS.removeprefix("/api/v1") + "{token}")
async def download(token: str, gateway: GatewayOf) -> Response:
    """What a signed address opens; nothing else of the request says what is read."""
    opens = gateway.signer.opened(token)
    if "trace" in opens:
        return json_response(trace_of(opens["trace"], gateway.records))
    record = gateway.records.checkpoints.get(opens["path"])
    if record is None or not _still_opens(opens, record):
        raise not_found("checkpoint", opens["path"])
    store = SnapshotStore(gateway.runtime.store)
    snapshot = await asyncio.to_thread(store.get, record.handle)
    folder = await asyncio.to_thread(store.fetch, snapshot)
    file: str = opens["file"]  # one of the manifest's, as it was signed
    return FileResponse(folder / file, media_type="application/octet-stream", filename=Path(file).name)


def _still_opens(opens: Mapping[str, Any], record: CheckpointRecord) -> bool:
    """Whether a path still has the weights that an address was signed for, and its holder may still read them."""
    living = record.expires_at is None or record.expires_at > time.time()
    return living and record.handle == opens["handle"] and (opens["own"] or record.public)


def _address(request: Request, token: str) -> str:
    return f"{str(request.base_url).rstrip('/')}{DOWNLOADS}{token}"
