"""What the service tells a client about itself: the flags that the client's library obeys, and the models."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from tinker_actors.gateway.caller import needs
from tinker_actors.gateway.gateway_of import GatewayOf
from tinker_actors.gateway.writing import json_response

router = APIRouter()

_CLIENTS = [needs("train", "sample", "read")]

CLIENT_CONFIG: dict[str, object] = {
    "parallel_fwdbwd_chunks": True,
    "fwdbwd_max_chunk_len": 1024,
    "fwdbwd_max_chunk_bytes_count": 5_000_000,
    # what libraries from 0.22 ask before they speak as later ones always do
    "proto_write_fwdbwd": True,
    "fwd_via_fwdbwd": True,
    "create_model_via_load_weights": True,
    "custom_loss_server_side": False,
    # sampling: copies of a client ask for numbers of their own
    "sample_join_sampling_session": True,
}
"""Flags that a client's library reads once, when it starts."""

DYNAMIC_CONFIG: dict[str, object] = {"refresh_interval_sec": 300, "sample_cancel_enabled": True}
"""Flags that it reads again and again."""


@router.post("/client/config", dependencies=_CLIENTS)
async def client_config(gateway: GatewayOf) -> Response:
    """The flags of a client's library; without them it doesn't start."""
    chosen = {"proto_compress_fwdbwd": gateway.tinker.compress, "pjwt_auth_enabled": gateway.tinker.tokens}
    return json_response({**CLIENT_CONFIG, **chosen})


@router.post("/client/dynamic_config", dependencies=_CLIENTS)
async def dynamic_config() -> Response:
    """The flags that may change while a client runs."""
    return json_response(DYNAMIC_CONFIG)


@router.get("/healthz")
async def health() -> Response:
    """That the service is there."""
    return json_response({"status": "ok"})


@router.get("/get_server_capabilities", dependencies=_CLIENTS)
async def capabilities(gateway: GatewayOf) -> Response:
    """The base models that are served."""
    models = [
        {"model_name": model.name, "max_context_length": await gateway.runtime.context_length(model.name)}
        | {"trainable": True, "sampleable": True}
        for model in gateway.runtime.models
    ]
    return json_response({"supported_models": models})
