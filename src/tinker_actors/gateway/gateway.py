"""All that the routes share, and the application made of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.responses import Response

from tinker_actors.errors import TinkerActorsError
from tinker_actors.gateway.accounts import Accounts
from tinker_actors.gateway.admission import Admission
from tinker_actors.gateway.checkpoints import Checkpoints
from tinker_actors.gateway.crowding import Crowding
from tinker_actors.gateway.dashboard.app import router as dashboard_router
from tinker_actors.gateway.faults import fault_of
from tinker_actors.gateway.futures import Futures
from tinker_actors.gateway.gate import Admit, Gate
from tinker_actors.gateway.jobs.app import router as jobs_router
from tinker_actors.gateway.jobs.submissions import Submissions
from tinker_actors.gateway.limits import Limiter, Limits
from tinker_actors.gateway.observing.app import Exposition
from tinker_actors.gateway.observing.app import router as observing_router
from tinker_actors.gateway.observing.metrics import HttpMetrics
from tinker_actors.gateway.observing.requests import Watch
from tinker_actors.gateway.openai.app import router as openai_router
from tinker_actors.gateway.openai.speakers import Speakers
from tinker_actors.gateway.pace import Pace
from tinker_actors.gateway.records import Records
from tinker_actors.gateway.refusals import RefusalError
from tinker_actors.gateway.runtime import Runtime
from tinker_actors.gateway.sampling_options import SamplingOptions
from tinker_actors.gateway.serving import Serving
from tinker_actors.gateway.signing import Signer
from tinker_actors.gateway.tinker.app import router as tinker_router
from tinker_actors.gateway.tinker.options import TinkerOptions
from tinker_actors.gateway.tinker.runs import TrainingRuns
from tinker_actors.gateway.tinker.sample_futures import SampleFutures
from tinker_actors.gateway.writing import json_response, own_path, refusal_response
from tinker_actors.scheduler.service import Scheduler


@dataclass(slots=True, kw_only=True)
class Gateway:
    """What the routes share; a route finds it at `request.app.state.gateway`. Enter it to serve, leave it to end.

        async with Runtime(root, models) as runtime, Gateway(runtime=runtime) as gateway:
            app = create_app(gateway)

    Attributes:
        runtime: The actors; entered before, left after.
        admit: Who is let in; programs of the same host alone, if nothing else is said.
        scheduler: Of the jobs; None if none are taken.
        limits: How much may be asked for.
        submissions: Checks the jobs that callers submit; there if the scheduler is.
        sampling: How much sampling is let in, and how many snapshots are held.
        serving: Loads snapshots into the samplers.
        records: What is remembered over a restart.
        futures: Answers that clients come back for.
        metrics: What is counted of its requests.
        speakers: What models need to be spoken to in text.
        samples: Those of sampling sessions.
        crowding: How much may be under way at the samplers.
        pace: How fast requests for samples are let in.
        training: The models in training.
        tinker: What the operator chose of the Tinker API.
        checkpoints: Keeps named checkpoints until they expire or are deleted.
        accounts: What tenants used and did.
        signer: Signs addresses of downloads.
        handing: Held while what a job made becomes checkpoints, and while a job is deleted.
    """

    runtime: Runtime
    admit: Admit = field(default_factory=Admission)
    scheduler: Scheduler | None = None
    limits: Limits = field(default_factory=Limits)
    submissions: Submissions | None = None
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    tinker: TinkerOptions = field(default_factory=TinkerOptions)
    records: Records = field(init=False)
    futures: Futures = field(init=False)
    training: TrainingRuns = field(init=False)
    serving: Serving = field(init=False)
    metrics: HttpMetrics = field(default_factory=HttpMetrics)
    speakers: Speakers = field(init=False)
    samples: SampleFutures = field(init=False, default_factory=SampleFutures)
    crowding: Crowding = field(init=False)
    pace: Pace = field(init=False)
    checkpoints: Checkpoints = field(init=False)
    accounts: Accounts = field(init=False)
    signer: Signer = field(init=False, default_factory=Signer)
    handing: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)
    _stack: contextlib.AsyncExitStack = field(init=False, default_factory=contextlib.AsyncExitStack)

    def __post_init__(self) -> None:
        self.futures = Futures()
        self.serving = Serving(self.runtime, most=self.sampling.snapshots)
        self.crowding, self.pace = self.sampling.crowding(), self.sampling.pace.pace()
        self.speakers = Speakers(self.runtime)

    async def __aenter__(self) -> Self:
        """Start what the routes need beside the actors."""
        async with contextlib.AsyncExitStack() as stack:
            self.records = Records(self.runtime.root / "gateway.sqlite")
            stack.callback(self.records.close)
            self.accounts = Accounts(self.records)
            self.checkpoints = Checkpoints(self.runtime, self.records, self.serving)
            await stack.enter_async_context(self.checkpoints.expiring())
            stack.push_async_callback(self.futures.close)
            self.training = TrainingRuns(
                self.runtime,
                self.records,
                self.futures,
                ended=self.checkpoints.end_session,
                session_life=self.tinker.session_life,
                models_of_tenant=self.tinker.models_of_tenant,
            )
            await stack.enter_async_context(self.training.running())
            await stack.enter_async_context(self.pace.kept())
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it, in the reverse order."""
        await self._stack.__aexit__(kind, error, trace)


def create_app(gateway: Gateway) -> FastAPI:
    """The gateway's HTTP application: an ASGI app to serve alone, or to mount in a service of one's own."""
    app = FastAPI(title="tinker_actors", docs_url=None, redoc_url=None, openapi_url="/openapi.json")
    app.state.gateway = gateway
    app.add_exception_handler(RefusalError, refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(TinkerActorsError, _failed)
    app.add_api_route("/healthz", _health, methods=["GET"])
    app.state.exposition = Exposition(gateway)
    app.include_router(observing_router)
    app.include_router(tinker_router)
    app.include_router(openai_router)
    app.include_router(jobs_router)
    app.include_router(dashboard_router)
    # the one added last is the outermost
    app.add_middleware(Gate, admit=gateway.admit, limiter=Limiter(gateway.limits), admitted=gateway.metrics.admitted)
    app.add_middleware(Watch, metrics=gateway.metrics)
    return app


async def _health() -> Response:
    return json_response({"status": "ok"})


async def refused(request: Request, error: Exception) -> Response:
    """What a route refused, in the form of its API."""
    assert isinstance(error, RefusalError)
    return refusal_response(own_path(request.scope), error)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    wrong = [_wrong(found["loc"], found["input"], found["msg"]) for found in error.errors()]
    return refusal_response(own_path(request.scope), RefusalError(422, "; ".join(wrong), code="invalid_request"))


def _wrong(location: Sequence[str | int], given: object, message: str) -> str:
    where = ".".join(map(str, location[1:])) or "body"
    seen = f" is {given!r}" if isinstance(given, str | int | float) and location[0] in ("query", "path") else ""
    return f"{where}{seen}: {message}"


async def _failed(request: Request, error: Exception) -> Response:
    refusal = fault_of(error, during=f"{request.method} {request.scope['path']}").refusal()
    return refusal_response(own_path(request.scope), refusal)
