"""A gateway with keys, of which one tenant owns something of everything and another one nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI
from starlette.types import Message, Receive, Scope, Send
from tests.console.recorded import episode, trajectory, turn
from tests.gateway.dashboards import play
from tests.gateway.every_route import Asked
from tests.gateway.gateways import TINY
from tests.gateway.job_gateways import GUESS, make_snapshots, talking

from tinker_actors.gateway.admission import Admission
from tinker_actors.gateway.config import ServeConfig
from tinker_actors.gateway.futures import Answer
from tinker_actors.gateway.gateway import Gateway, create_app
from tinker_actors.gateway.keys import KeyStore
from tinker_actors.gateway.opening import submissions_for
from tinker_actors.gateway.record_kinds import CheckpointRecord, ModelRecord, SamplerRecord, SessionRecord
from tinker_actors.gateway.runtime import Runtime
from tinker_actors.gateway.scopes import SCOPES
from tinker_actors.policies import PolicySpec
from tinker_actors.scheduler.job_folder import JobFolder
from tinker_actors.scheduler.job_records import JobRequest
from tinker_actors.scheduler.resources import Resources
from tinker_actors.scheduler.run_folder import RunFolder
from tinker_actors.scheduler.scheduler_settings import SchedulerSettings
from tinker_actors.scheduler.service import Scheduler
from tinker_actors.scheduler.states import JobKind, JobState

_SESSION = "00000000-0000-4000-8000-00000000000"
OWN_SESSION, NO_SESSION = f"{_SESSION}1", f"{_SESSION}0"
OWN_EPISODE = "train-1-0-0"
OWN_MODEL, NO_MODEL = f"{OWN_SESSION}:train:0", f"{NO_SESSION}:train:0"

MISSING: dict[str, Any] = {
    "session_id": NO_SESSION,
    "model_id": NO_MODEL,
    "request_id": "0" * 32,
    "model": f"tinker://{NO_MODEL}/sampler_weights/1",
    "model_path": f"tinker://{NO_MODEL}/sampler_weights/1",
    "sampler_id": f"{NO_SESSION}:sample:0",
    "sampling_session_id": f"{NO_SESSION}:sample:0",
    "job": "job-0000000000",
    "upload": f"upload:{'0' * 64}",
    "episode": "nothing",
    "tinker_path": f"tinker://{NO_MODEL}/sampler_weights/1",
    "source_path": f"tinker://{NO_MODEL}/sampler_weights/1",
    "segment": "sampler_weights",
    "checkpoint": "1",
    "policy": "policy",
    "snapshot": "000009",
}
"""For each name of an id, one of its form that nobody has."""


def _openai(**body: Any) -> Callable[..., Asked]:
    def asked(method: str, path: str, values: Mapping[str, Any]) -> Asked:
        return Asked(method=method, path=path, body={"model": values["model"], **body})

    return asked


def _load(method: str, path: str, values: Mapping[str, Any]) -> Asked:
    body = {"session_id": values["session_id"], "model_seq_id": 1, "path": values["model_path"], "optimizer": False}
    return Asked(method=method, path=path, body=body)


def _pass(method: str, path: str, values: Mapping[str, Any]) -> Asked:
    asked = {"data": [], "loss_fn": "ppo"}
    return Asked(method=method, path=path, body={"model_id": values["model_id"], "forward_backward_input": asked})


def _of_kind(kind: str) -> Callable[..., Asked]:
    def asked(method: str, path: str, values: Mapping[str, Any]) -> Asked:
        return Asked(method=method, path=path.replace("/sampler_weights/", f"/{kind}/"))

    return asked


def _usage(method: str, path: str, _: Mapping[str, Any]) -> Asked:
    query = {"starting_on": "2026-01-01T00:00:00Z", "ending_before": "2026-01-02T00:00:00Z"}
    return Asked(method=method, path=path, query=query)


_CHECKPOINT = "/api/v1/training_runs/{model_id}/checkpoints/{segment}/{checkpoint}"

BODIES: dict[str, Any] = {
    f"DELETE {_CHECKPOINT}": _of_kind("weights"),
    f"GET {_CHECKPOINT}/external_weights_urls": _of_kind("external_weights"),
    "GET /api/v1/billing/usage/events": _usage,
    "POST /api/v1/copy_weights": {"destination_project_id": "p"},
    "POST /api/v1/create_model": {"base_model": TINY.name},
    "POST /api/v1/load_weights": _load,
    "POST /api/v1/forward_backward": _pass,
    "POST /api/v1/forward": _pass,
    "POST /v1/chat/completions": _openai(messages=[{"role": "user", "content": "hi"}], max_tokens=1),
    "POST /v1/completions": _openai(prompt="hi", max_tokens=1),
    "POST /api/v1/asample": {
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [5, 6]}]},
        "sampling_params": {"max_tokens": 1},
        "model_path": None,
    },
    "POST /api/v1/retrieve_futures": {"timeout": 0},
    "GET /dashboard/api/live": lambda method, path, values: Asked(
        method=method, path=path, query={"run": values["job"]}
    ),
    "POST /jobs/v1/jobs": {"config": GUESS},
    "POST /jobs/v1/uploads": lambda method, path, _: Asked(method=method, path=path, content=b'{"text": "a row"}\n'),
    "GET /jobs/v1/jobs/{job}/wait": lambda method, path, _: Asked(method=method, path=path, query={"seconds": "0"}),
    "POST /v1/responses": _openai(input="hi", max_output_tokens=1),
}
"""What a route's schema doesn't tell of its body, by the route's name."""


class Service:
    """A gateway, asked by two tenants from another host."""

    def __init__(self, gateway: Gateway, app: FastAPI, keys: KeyStore, folder: Path) -> None:
        self._folder = folder
        self.gateway, self.app = gateway, app
        self.keys = {tenant: keys.add(tenant, scopes=SCOPES - {"admin"})[1] for tenant in ("owner", "other")}
        self._store = keys
        self._handle = ""

    async def start(self) -> None:
        """Store something to own."""
        trainer = self.gateway.runtime.engines_of(TINY.name).trainer
        await trainer.create(PolicySpec(base_model=TINY.catalogue_name, rank=1, name=OWN_MODEL))
        self._handle = (await trainer.publish(OWN_MODEL)).handle
        assert self.gateway.scheduler is not None
        config = {"model": {"name": TINY.catalogue_name}}
        resources = Resources(cpu_workers=1)
        asked = JobRequest(
            kind=JobKind.RL_LORA, name="own", config=config, directory="/", need=resources, tenant="owner"
        )
        self._job = (await self.gateway.scheduler.submit(asked)).id
        await self.gateway.scheduler.wait(self._job, (JobState.RUNNING,))
        folder = JobFolder(Path(await self.gateway.scheduler.folder(self._job)))
        await make_snapshots(self.gateway.runtime.mesh, folder)
        play(RunFolder(folder.run), episode(OWN_EPISODE, trajectory("x", turn("go", "12"))))

    def key_with(self, scope: Any) -> str:
        """A key of the owner's that may do nothing else."""
        return self._store.add("owner", scopes=[scope])[1]

    def owned(self) -> dict[str, Any]:
        """Ids of things of the owner's, made anew."""
        now, records = time.time(), self.gateway.records
        records.sessions.put(SessionRecord(session_id=OWN_SESSION, tenant="owner", created_at=now, seen_at=now))
        made: dict[str, Any] = {"tenant": "owner", "model_id": OWN_MODEL, "base_model": TINY.name, "rank": 1}
        model = ModelRecord(session_id=OWN_SESSION, optimizer="adamw", created_at=now, used_at=now, **made)
        records.models.put(model)
        path = f"tinker://{OWN_MODEL}/sampler_weights/1"
        checkpoint = CheckpointRecord(path=path, kind="sampler", handle=self._handle, created_at=now, **made)
        records.checkpoints.put(checkpoint)
        gone = replace(
            checkpoint, path=f"tinker://{OWN_MODEL}/weights/1", kind="training", handle="tinker://gone/weights/1"
        )
        records.checkpoints.put(gone)
        records.checkpoints.put(replace(checkpoint, path=f"tinker://{OWN_MODEL}/external_weights/1", kind="external"))
        sampler: dict[str, Any] = {
            "sampler_id": f"{OWN_SESSION}:sample:0",
            "session_id": OWN_SESSION,
            "kind": "snapshot",
        }
        about: dict[str, Any] = {"path": path, "handle": self._handle, "tenant": "owner", "base_model": TINY.name}
        records.samplers.put(SamplerRecord(created_at=now, **sampler, **about))
        future = self.gateway.futures.open("owner", "sample")
        self.gateway.futures.settle(future, Answer.of({"secret": "of the owner"}))
        return {
            "session_id": OWN_SESSION,
            "model_id": OWN_MODEL,
            "request_id": future.request_id,
            "model": path,
            "model_path": path,
            "sampler_id": sampler["sampler_id"],
            "sampling_session_id": sampler["sampler_id"],
            "job": self._job,
            "upload": self._upload(),
            "episode": OWN_EPISODE,
            "tinker_path": path,
            "source_path": path,
            "segment": "sampler_weights",
            "checkpoint": "1",
            "policy": "policy",
            "snapshot": "000001",
        }

    def _upload(self) -> str:
        folder = self._folder / "uploads" / "owner"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{'1' * 64}.jsonl").write_text('{"text": "a row"}\n')
        return f"upload:{'1' * 64}"

    async def ask(self, asked: Asked, key: str | None) -> httpx.Response:
        """Make a request."""
        transport = httpx.ASGITransport(_Bounded(self.app), client=("192.0.2.7", 1))
        headers = dict(asked.headers) | ({} if key is None else {"X-API-Key": key})
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            body = {"json": asked.body} if asked.content is None else {"content": asked.content}
            async with asyncio.timeout(60):
                return await client.request(asked.method, asked.path, headers=headers, params=asked.query, **body)

    async def outcome(self, asked: Asked, key: str, ids: Mapping[str, Any]) -> tuple[int, str]:
        """What came of a request, in the end, without the ids that it named."""
        answer = await self.ask(asked, key)
        if answer.status_code == 200 and "request_id" in (promise := _object(answer)) and "retrieve" not in asked.path:
            fetch = Asked(method="POST", path="/api/v1/retrieve_future", body={"request_id": promise["request_id"]})
            while (answer := await self.ask(fetch, key)).status_code == 408:
                pass  # it takes longer, and is to be asked for again
        text = answer.text
        for name, value in sorted(ids.items(), key=lambda item: -len(str(item[1]))):
            text = text.replace(str(value), f"<{name}>")
        return answer.status_code, text


class _Bounded:
    """An application whose endless answers end when a while has brought nothing more."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = asyncio.Event()

        async def sent(message: Message) -> None:
            await send(message)
            if message.get("more_body"):
                begun.set()

        answering = asyncio.ensure_future(self._app(scope, receive, sent))
        waiting = asyncio.ensure_future(begun.wait())
        await asyncio.wait([answering, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if not (await asyncio.wait([answering], timeout=0.5))[0]:
            answering.cancel()
            await asyncio.wait([answering])
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        if not answering.cancelled():
            answering.result()


def _object(answer: httpx.Response) -> dict[str, Any]:
    found = answer.json() if answer.headers.get("content-type") == "application/json" else None
    return found if isinstance(found, dict) else {}


@asynccontextmanager
async def owning_service(root: Path) -> AsyncIterator[Service]:
    """Such a gateway, over real actors in this process."""
    with KeyStore(root / "keys.sqlite") as keys:
        async with (
            Runtime(root / "service", [TINY], in_process=True) as runtime,
        ):
            folder, room = root / "scheduler", Resources(memory=2**40, adapter_slots=64, cpu_workers=99)
            scheduler = await runtime.mesh.spawn(
                Scheduler, str(folder), room, settings=SchedulerSettings(command=talking, grace=1.0)
            )
            checks = submissions_for(ServeConfig(root=str(root / "service")), scheduler, folder)
            async with Gateway(
                runtime=runtime, admit=Admission(keys), scheduler=scheduler, submissions=checks
            ) as gateway:
                service = Service(gateway, create_app(gateway), keys, folder)
                await service.start()
                yield service
