"""Routes that read what a job writes: its output, its numbers, its replies."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

from fastapi import APIRouter, Query, Request
from starlette.responses import StreamingResponse

from tinker_actors.gateway.caller import Caller, CallerOf, needs
from tinker_actors.gateway.gateway_of import GatewayOf
from tinker_actors.gateway.jobs.following import Ends, file_bytes, file_rows
from tinker_actors.gateway.jobs.shared import folder_of, scheduler_of
from tinker_actors.gateway.refusals import RefusalError
from tinker_actors.scheduler.run_folder import RunFolder

if TYPE_CHECKING:
    from tinker_actors.gateway.gateway import Gateway

router = APIRouter(dependencies=[needs("read", "jobs")])

_LARGEST = 2**53
_LET_IN = 10.0
"""Seconds for which who follows a job is let in before its key is looked at again."""
Start: TypeAlias = Annotated[int, Query(ge=0, le=_LARGEST)]
Reader: TypeAlias = Callable[[Path, int, Ends | None], AsyncIterator[bytes]]


@router.get("/jobs/{job}/logs", response_class=StreamingResponse)
async def logs(
    job: str,
    request: Request,
    caller: CallerOf,
    gateway: GatewayOf,
    offset: Start = 0,
    tail: Annotated[int | None, Query(ge=0, le=_LARGEST)] = None,
    follow: bool = False,
) -> StreamingResponse:
    """What a job's processes printed, of all attempts.

    From a byte on, or the last so many bytes; with `follow` on until the job is over. The header `X-Offset` says from
    which byte: that and the bytes that came are the offset to go on from.
    """
    path = (await folder_of(gateway, caller, job)).log
    if tail is not None:
        offset = max(0, (path.stat().st_size if path.exists() else 0) - tail)
    answer = _stream(request, job, path, file_bytes, offset, "text/plain; charset=utf-8", follow=follow)
    answer.headers["X-Offset"] = str(offset)
    return answer


@router.get("/jobs/{job}/metrics", response_class=StreamingResponse)
async def metrics(
    job: str, request: Request, caller: CallerOf, gateway: GatewayOf, start: Start = 0, follow: bool = False
) -> StreamingResponse:
    """A job's numbers as JSON Lines: a row for each step and each evaluation.

    Without the first `start` rows; with `follow` on until the job is over. A job that goes on from a checkpoint does
    the steps past it again, and their rows come again then.
    """
    run = await _run_of(gateway, caller, job)
    return _stream(request, job, run.metrics, file_rows, start, "application/x-ndjson", follow=follow)


@router.get("/jobs/{job}/replies", response_class=StreamingResponse)
async def replies(
    job: str, request: Request, caller: CallerOf, gateway: GatewayOf, start: Start = 0, follow: bool = False
) -> StreamingResponse:
    """What an inference job sampled, as JSON Lines: a row for each prompt; `start` and `follow` as of metrics."""
    run = await _run_of(gateway, caller, job)
    return _stream(request, job, run.replies, file_rows, start, "application/x-ndjson", follow=follow)


async def _run_of(gateway: Gateway, caller: Caller, job: str) -> RunFolder:
    return RunFolder((await folder_of(gateway, caller, job)).run)


def _stream(
    request: Request, job: str, path: Path, reader: Reader, start: int, media_type: str, *, follow: bool
) -> StreamingResponse:
    gateway: Gateway = request.app.state.gateway

    async def body() -> AsyncIterator[bytes]:
        admitted = time.monotonic()
        ends = Ends(scheduler_of(gateway).wait(job)) if follow else None
        try:
            async for chunk in reader(path, start, ends):
                if follow and time.monotonic() - admitted >= _LET_IN:
                    gateway.admit(request)
                    admitted = time.monotonic()
                yield chunk
        except RefusalError:  # the key was revoked meanwhile; the reader hears why when it asks again
            return
        finally:
            if ends is not None:
                await ends.close()

    return StreamingResponse(body(), media_type=media_type, headers={"X-Accel-Buffering": "no"})
