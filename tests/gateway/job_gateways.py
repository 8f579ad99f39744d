"""Gateways that take jobs, which are tiny programs here, and callers of several tenants."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from starlette.requests import HTTPConnection

from tinker_actors.actors import Mesh
from tinker_actors.gateway.caller import Caller
from tinker_actors.gateway.config import ServeConfig
from tinker_actors.gateway.gateway import Gateway, create_app
from tinker_actors.gateway.opening import submissions_for
from tinker_actors.gateway.runtime import Runtime, ServedModel
from tinker_actors.gateway.scopes import USUAL_SCOPES
from tinker_actors.policies import PolicySpec
from tinker_actors.scheduler.job_folder import JobFolder
from tinker_actors.scheduler.job_records import Job
from tinker_actors.scheduler.resources import Resources
from tinker_actors.scheduler.run_folder import RunFolder
from tinker_actors.scheduler.scheduler_settings import SchedulerSettings
from tinker_actors.scheduler.service import Scheduler
from tinker_actors.training import Trainer

TALKING = str(Path(__file__).with_name("talking_job.py"))
GUESS: dict[str, Any] = {
    "name": "guess",
    "environment": {"name": "number_guess"},
    "rollouts": {"workers": 0},
    "trainer": {"threads": 1},
}


def talking(job: Job, folder: JobFolder) -> Sequence[str]:
    """The program of a job."""
    return [sys.executable, "-I", "-S", TALKING, str(folder.root), str(job.attempt)]


def named(connection: HTTPConnection) -> Caller:
    """Who says `X-Tenant: NAME` is let in as that tenant."""
    tenant = connection.headers.get("x-tenant", "local")
    scopes = {"admin"} if tenant == "root" else USUAL_SCOPES
    return Caller(tenant=tenant, key="test", scopes=frozenset(scopes))  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """A gateway that takes jobs.

    Attributes:
        gateway: The gateway.
        http: Asks it as the local tenant.
        folder: The scheduler's.
    """

    gateway: Gateway
    http: httpx.AsyncClient
    folder: Path

    async def submit(self, tenant: str = "local", **more: Any) -> dict[str, Any]:
        """A job that has been taken."""
        answer = await self.http.post("/jobs/v1/jobs", json={"config": GUESS} | more, headers={"X-Tenant": tenant})
        assert answer.status_code == 201, answer.text
        return answer.json()

    async def running(self, job: str) -> None:
        """Wait until a job runs."""
        answer = await self.http.get(
            f"/jobs/v1/jobs/{job}/wait", params={"state": "running"}, headers={"X-Tenant": "root"}
        )
        assert answer.json()["state"] == "running", answer.text

    def finish(self, job: str) -> None:
        """Let a job come to its end."""
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = entry.read_bytes().split(b"\0")
            except OSError:
                continue
            if TALKING.encode() in words and any(word.endswith(job.encode()) for word in words):
                os.kill(int(entry.parent.name), signal.SIGUSR1)

    async def over(self, job: str) -> dict[str, Any]:
        """Wait for a job's end."""
        return (await self.http.get(f"/jobs/v1/jobs/{job}/wait", headers={"X-Tenant": "root"})).json()


@asynccontextmanager
async def desk(
    root: Path, *, capacity: int = 4, models: Sequence[ServedModel] = (), **settings: Any
) -> AsyncIterator[Desk]:
    """A gateway that takes jobs, until the block is left."""
    config = ServeConfig(root=str(root), **settings)
    folder = root / "scheduler"
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(Runtime(root, models, in_process=True))
        resources = Resources(memory=2**40, adapter_slots=64, cpu_workers=capacity)
        rules = config.rules.rules(resources)
        scheduler = await runtime.mesh.spawn(
            Scheduler, str(folder), resources, settings=SchedulerSettings(rules=rules, command=talking)
        )
        checks = submissions_for(config, scheduler, folder)
        gateway = await stack.enter_async_context(
            Gateway(runtime=runtime, admit=named, scheduler=scheduler, submissions=checks)
        )
        transport = httpx.ASGITransport(create_app(gateway))
        http = await stack.enter_async_context(httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1"))
        yield Desk(gateway=gateway, http=http, folder=folder)


async def make_snapshots(mesh: Mesh, folder: JobFolder, base: str = "tiny-llama") -> None:
    """Two snapshots of a job, as its own trainer would have made them."""
    store = str(RunFolder(folder.run).policies)
    trainer = await mesh.spawn(Trainer, base_model=base, store=store, threads=1, node=0)
    await trainer.create(PolicySpec(base_model=base, rank=2, name="policy"))
    for _ in range(2):
        await trainer.publish("policy")
    await mesh.stop(trainer)


async def all_of(http: httpx.AsyncClient, url: str, **more: Any) -> str:
    """The whole body of a stream."""
    async with asyncio.timeout(60):
        return (await http.get(url, **more)).text
