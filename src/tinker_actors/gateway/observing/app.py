"""`/metrics`: all that Prometheus may see."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import choose_encoder
from starlette.responses import Response

from tinker_actors.gateway.caller import needs
from tinker_actors.gateway.observing.readings import readings

if TYPE_CHECKING:
    from tinker_actors.gateway.gateway import Gateway

router = APIRouter(tags=["observing"])

_FRESH = 1.0
"""Seconds in which a reading is given again, so that asking more often costs nothing."""


class Exposition:
    """The metrics of a gateway, read anew at most once a second.

    Args:
        gateway: What is read.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._lock = asyncio.Lock()
        self._read: list[Metric] = []
        self._at = float("-inf")

    async def families(self) -> _Families:
        """All metrics as they stand."""
        async with self._lock:
            if time.monotonic() - self._at > _FRESH:
                self._read = await readings(self._gateway)
                self._at = time.monotonic()
        return _Families(self._gateway.metrics.registry, self._read)


class _Families(CollectorRegistry):
    """What is counted here and what was read elsewhere, in one; without the times at which counters began."""

    def __init__(self, own: CollectorRegistry, read: Sequence[Metric]) -> None:
        super().__init__()
        self._own, self._read = own, read

    def collect(self) -> Iterator[Metric]:
        for family in (*self._own.collect(), *self._read):
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family


@router.get("/metrics", dependencies=[needs("metrics")])
async def metrics(request: Request) -> Response:
    """The service's metrics, for Prometheus: of all tenants together, and of none by name."""
    exposition: Any = request.app.state.exposition
    encode, media_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(await exposition.families()), media_type=media_type)
