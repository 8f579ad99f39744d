"""Gateways with a dashboard for tests: on a real port, with jobs that are tiny programs and do as they are told."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from playwright.async_api import Browser, Page, expect
from tests.console.recorded import MODEL
from tests.scheduler.job_material import fake, request

from tinker_actors.data import Episode
from tinker_actors.gateway.admission import Admission
from tinker_actors.gateway.config import ServeConfig
from tinker_actors.gateway.gate import Admit
from tinker_actors.gateway.gateway import Gateway, create_app
from tinker_actors.gateway.listening import listening, serving
from tinker_actors.gateway.opening import submissions_for
from tinker_actors.gateway.runtime import Runtime
from tinker_actors.rollouts import transcript
from tinker_actors.scheduler.job_folder import JobFolder
from tinker_actors.scheduler.job_records import Job
from tinker_actors.scheduler.resources import Resources
from tinker_actors.scheduler.run_folder import RunFolder
from tinker_actors.scheduler.scheduler_settings import SchedulerSettings
from tinker_actors.scheduler.service import Scheduler
from tinker_actors.scheduler.states import JobKind, JobState
from tinker_actors.telemetry import JsonlWriter

STEPS = 40
PATIENCE = 60_000
"""Milliseconds in which a page must show what it is to show, on however busy a machine."""

expect.set_options(timeout=PATIENCE)


@dataclass(slots=True)
class Dashboard:
    """A gateway that can be asked, left without a server, and served again."""

    gateway: Gateway
    url: str = ""
    wrong: list[str] = field(default_factory=list)

    @property
    def scheduler(self) -> Scheduler:
        assert self.gateway.scheduler is not None
        return self.gateway.scheduler

    @asynccontextmanager
    async def served(self, port: int = 0, *, below: str = "") -> AsyncIterator[str]:
        """The server, on a port, perhaps below a path of another service."""
        app = create_app(self.gateway)
        if below:
            outer = FastAPI()
            outer.mount(below, app)
            app = outer
        with listening("127.0.0.1", port) as socket:
            async with serving(app, socket) as url:
                self.url = url + below
                yield self.url

    async def submit(self, name: str = "guess", tenant: str = "local", *, do: str = "hold", **config: Any) -> Job:
        """A job of so many steps; it runs once there is room."""
        plain = {"do": [do], "model": {"name": MODEL}, "trainer": {"steps": STEPS}, **config}
        asked = replace(request(do), name=name, tenant=tenant, config=plain, kind=JobKind.RL_LORA)
        return await self.scheduler.submit(asked)

    async def running(self, name: str = "guess", tenant: str = "local", **config: Any) -> tuple[Job, RunFolder]:
        """A running job and its run folder, which is empty."""
        job = await self.submit(name, tenant, **config)
        job = await self.scheduler.wait(job.id, (JobState.RUNNING,))
        assert job.state is JobState.RUNNING
        run = RunFolder(JobFolder(Path(await self.scheduler.folder(job.id))).run)
        run.root.mkdir()
        return job, run

    @asynccontextmanager
    async def page(self, browser: Browser, path: str = "#/jobs", **settings: Any) -> AsyncIterator[Page]:
        """A page of it. What goes wrong in the page is an error at its end."""
        context = await browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **settings})
        page = await context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("console", lambda message: self.wrong.append(message.text) if _is_bad(message) else None)
        await page.goto(f"{self.url}/{path}")
        try:
            yield page
        finally:
            await context.close()
        assert not self.wrong


def _is_bad(message: Any) -> bool:
    # a refused or failed request is written there by the browser itself; the page says so to its reader
    return message.type == "error" and not re.match(r"Failed to load resource", message.text)


@asynccontextmanager
async def dashboard(root: Path, *, room: int = 2, admit: Admit | None = None) -> AsyncIterator[Dashboard]:
    """A dashboard over no model and a scheduler with room for so many jobs."""
    async with Runtime(root, [], in_process=True) as runtime:
        scheduler = await runtime.mesh.spawn(
            Scheduler,
            str(root / "scheduler"),
            Resources(cpu_workers=room),
            settings=SchedulerSettings(command=fake, grace=1.0),
            name="scheduler",
        )
        checks = submissions_for(ServeConfig(root=str(root)), scheduler, root / "scheduler")
        shared = {"scheduler": scheduler, "submissions": checks, "admit": admit or Admission()}
        async with Gateway(runtime=runtime, **shared) as gateway:
            yield Dashboard(gateway)


def measure(run: RunFolder, first: int, last: int, **more: float) -> None:
    """Write the metrics of some steps as a run does: a reward that rises by 0.01 a step."""
    with JsonlWriter(run.metrics) as metrics:
        for step in range(first, last + 1):
            record = {"step": step, "kind": "step", "reward": step / 100, "kl": 0.5 / step, "tokens_per_second": 1e3}
            metrics.write({**record, "staleness_mean": 0.0, "at_update_end": 2.0 * step, **more})


def play(run: RunFolder, *episodes: Episode, step: int = 1, advantages: dict[int, list[float]] | None = None) -> None:
    """Write episodes as a run does."""
    with JsonlWriter(run.rollouts) as rollouts:
        for episode in episodes:
            rollouts.write(transcript(episode, advantages=advantages or {}, trainer_steps={"mine": 3}, step=step))
