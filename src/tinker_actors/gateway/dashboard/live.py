"""What the page is told as it happens: an event stream of jobs that move, metrics that are written, and the meshes.

Server-sent events, which the page reads with `fetch`: the key travels in a header, never in the address. A stream that
was cut is taken up where it ended: the page says how far it has read each run.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import orjson
from fastapi import APIRouter, Query, Request
from starlette.responses import StreamingResponse

from tinker_actors.gateway.caller import Caller, CallerOf, needs
from tinker_actors.gateway.dashboard.health import describe_health
from tinker_actors.gateway.dashboard.job_rows import row
from tinker_actors.gateway.dashboard.mesh import describe
from tinker_actors.gateway.dashboard.metrics_file import read_metrics
from tinker_actors.gateway.dashboard.owned import find_job
from tinker_actors.gateway.gateway_of import GatewayOf
from tinker_actors.gateway.jobs.shared import tenant_of, with_folders
from tinker_actors.gateway.refusals import RefusalError
from tinker_actors.scheduler.states import JobState

if TYPE_CHECKING:
    from tinker_actors.gateway.gateway import Gateway

router = APIRouter(prefix="/dashboard/api")

MOST_STREAMS = 16
"""Of one tenant at once."""
MOST_RUNS = 16
"""Runs that one stream follows."""
LOOK = 1.0
"""Seconds between two looks at the followed runs' files."""
SURVEY = 2.0
"""Seconds between two descriptions of the meshes, or of the gateway's health."""
BEAT = 10.0
"""Seconds after which a stream without news gives a sign of life."""

Source: TypeAlias = Callable[[], Coroutine[Any, Any, None]]

logger = logging.getLogger(__name__)

_END = b""
_open: Counter[str] = Counter()


@router.get("/live", dependencies=[needs("read", "jobs")])
async def live(
    request: Request,
    gateway: GatewayOf,
    caller: CallerOf,
    run: Annotated[list[str], Query(default_factory=list, max_length=MOST_RUNS)],
    cursor: Annotated[list[str], Query(default_factory=list, max_length=MOST_RUNS)],
    mesh: bool = False,
    health: bool = False,
    progress: bool = False,
) -> StreamingResponse:
    """The events `hello`, `job`, `gone`, `metrics`, `mesh`, `health` and `progress`.

    Args:
        request: The request.
        gateway: The gateway.
        caller: Who asks.
        run: Jobs whose metrics are followed.
        cursor: For each of them how far it was read before; empty for not at all.
        mesh: Whether the meshes are described again and again.
        health: The same for the gateway's health, for callers with the scope `admin`.
        progress: Whether to tell how far running jobs are.
    """
    if health and not caller.sees_all:
        raise RefusalError(403, "the gateway's health needs a key with the scope admin", code="missing_scope")
    if _open[caller.tenant] >= MOST_STREAMS:
        raise RefusalError(429, f"{MOST_STREAMS} pages of {caller.tenant!r} are open; close one", code="too_many")
    files = {job: (await find_job(gateway, caller, job)).run.metrics for job in run}
    cursors = dict(zip(run, [*cursor, *[""] * len(run)], strict=False))
    feed = _Feed(gateway, caller)
    feed.add(feed.jobs)
    if files:
        feed.add(lambda: feed.metrics(files, cursors))
    if progress:
        feed.add(feed.progress)
    if mesh:
        feed.add(lambda: feed.repeat("mesh", lambda: describe(gateway, caller)))
    if health:
        feed.add(lambda: feed.repeat("health", lambda: describe_health(gateway)))
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(feed.events(request), media_type="text/event-stream", headers=headers)


class _Feed:
    """One stream: its sources put events into a queue, and a slow reader slows them."""

    def __init__(self, gateway: Gateway, caller: Caller) -> None:
        self._gateway, self._caller = gateway, caller
        self._queue: asyncio.Queue[bytes] = asyncio.Queue(8)
        self._sources: list[Source] = []

    def add(self, source: Source) -> None:
        """Have a source; it runs as long as somebody reads."""
        self._sources.append(source)

    async def events(self, request: Request) -> AsyncIterator[bytes]:
        """The events as text, until the reader goes, a source fails, or the key is no longer good."""
        tenant = self._caller.tenant
        _open[tenant] += 1
        tasks = [asyncio.create_task(self._run(source)) for source in self._sources]
        admitted = time.monotonic()
        try:
            while True:
                try:
                    event = await asyncio.wait_for(self._queue.get(), BEAT)
                except TimeoutError:
                    event = b": still here\n\n"
                if time.monotonic() - admitted > BEAT:
                    self._gateway.admit(request)
                    admitted = time.monotonic()
                if event == _END:
                    return
                yield event
        except RefusalError:  # the key was revoked meanwhile; the page hears why when it asks again
            return
        finally:
            for task in tasks:
                task.cancel()
            _open[tenant] -= 1

    async def jobs(self) -> None:
        """Every job that moves or is deleted. `hello` says that from now on none is missed."""
        scheduler, tenant = self._gateway.scheduler, tenant_of(self._caller)
        if scheduler is None:
            await self._put("hello", {})
            await asyncio.Event().wait()
            return
        async for job in scheduler.stream.changes(tenant):
            if job is None:
                await self._put("hello", {})
                continue
            counts = {state.value: count for state, count in (await scheduler.counts(tenant)).items()}
            if job.deleted:
                await self._put("gone", {"id": job.id, "counts": counts})
            for present, folder in await with_folders(scheduler, [job]):
                await self._put("job", {"job": await asyncio.to_thread(row, present, folder), "counts": counts})

    async def progress(self) -> None:
        """How far each running job is, whenever it has got further."""
        scheduler, tenant = self._gateway.scheduler, tenant_of(self._caller)
        told: dict[str, object] = {}
        while scheduler is not None:
            running = await scheduler.jobs((JobState.RUNNING,), tenant)
            told = {job.id: told.get(job.id) for job in running}
            for job, folder in await with_folders(scheduler, running):
                present = await asyncio.to_thread(row, job, folder)
                if present["progress"] != told[job.id]:
                    told[job.id] = present["progress"]
                    await self._put("progress", present)
            await asyncio.sleep(SURVEY)

    async def metrics(self, files: Mapping[str, Path], cursors: dict[str, str]) -> None:
        """What runs write, from their cursors on."""
        while True:
            behind = False
            for job, path in files.items():
                reading = await asyncio.to_thread(read_metrics, path, cursors[job])
                if reading is not None:
                    cursors[job] = reading.cursor
                    behind = behind or reading.behind
                    await self._put("metrics", {"job": job, **asdict(reading)})
            if not behind:
                await asyncio.sleep(LOOK)

    async def repeat(self, name: str, describe: Callable[[], Awaitable[Any]]) -> None:
        """A description again and again."""
        while True:
            await self._put(name, await describe())
            await asyncio.sleep(SURVEY)

    async def _run(self, source: Source) -> None:
        try:
            await source()
        except Exception:  # whatever it was ends this stream alone; the page opens another
            logger.exception("a source of the dashboard's stream failed")
        await self._queue.put(_END)

    async def _put(self, name: str, data: object) -> None:
        await self._queue.put(b"event: " + name.encode() + b"\ndata: " + orjson.dumps(data) + b"\n\n")
