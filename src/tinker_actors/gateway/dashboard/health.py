"""The page's view of the gateway's health: its samplers, its trainers, and what it counts."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter
from starlette.responses import Response

from tinker_actors.gateway.caller import needs
from tinker_actors.gateway.gateway_of import GatewayOf
from tinker_actors.gateway.writing import json_response

if TYPE_CHECKING:
    from tinker_actors.gateway.gateway import Gateway
    from tinker_actors.gateway.runtime import Engines

router = APIRouter(prefix="/dashboard/api")

_SHOWN = (
    *("requests", "failed", "cancelled", "refused", "preempted", "samples", "prompt_tokens", "cached_tokens"),
    *("generated_tokens", "busy_seconds", "occupancy", "waiting", "running"),
    *("kv_tokens", "kv_cached", "kv_capacity", "kv_bytes", "adapters_loaded", "adapter_bytes"),
)


@router.get("/health", dependencies=[needs("admin")])
async def health(gateway: GatewayOf) -> Response:
    """How the gateway is at this moment."""
    return json_response(await describe_health(gateway))


async def describe_health(gateway: Gateway) -> dict[str, Any]:
    """Counts and levels; what is a rate is for the reader to take from two of them."""
    engines = gateway.runtime.engines
    found = await asyncio.gather(*(_engine(name, engines[name]) for name in engines))
    return {"models": found, "requests": _requests(gateway), "at": asyncio.get_running_loop().time()}


def _requests(gateway: Gateway) -> dict[str, Any]:
    """What the gateway counts of its requests, summed over routes."""
    found: dict[str, Any] = {"answered": {}, "refused": {}, "in_flight": 0, "futures": len(gateway.futures)}
    for family in gateway.metrics.registry.collect():
        for sample in family.samples:
            match sample.name:
                case "tinker_actors_http_requests_total":
                    group = f"{sample.labels['status'][0]}xx"
                    found["answered"][group] = found["answered"].get(group, 0) + sample.value
                case "tinker_actors_http_refused_total":
                    found["refused"][sample.labels["reason"]] = sample.value
                case "tinker_actors_http_requests_in_flight":
                    found["in_flight"] = sample.value
                case _:
                    pass
    return found


async def _engine(name: str, engines: Engines) -> dict[str, Any]:
    stats = asdict(await engines.sampler.stats())
    training = await engines.trainer.policies()
    return {
        "model": name,
        "base_model": engines.served.catalogue_name,
        "policies": len(training),
        "snapshots": len(stats["snapshots"]),
        **{key: stats[key] for key in _SHOWN},
    }
