"""Following the jobs of a scheduler: nothing is asked for twice, and nobody waits for a slow reader."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.scheduler.job_material import ONE, fake, request

from tinker_actors.actors import Mesh
from tinker_actors.scheduler.scheduler_settings import SchedulerSettings
from tinker_actors.scheduler.service import Scheduler
from tinker_actors.scheduler.states import JobState


async def test_who_follows_hears_of_every_job_that_moves_and_of_no_other_tenants(tmp_path: Path):
    async with Mesh() as mesh:
        scheduler = await mesh.spawn(
            Scheduler, str(tmp_path / "scheduler"), ONE, settings=SchedulerSettings(command=fake)
        )
        heard = scheduler.stream.changes("mine")
        assert await anext(heard) is None
        await scheduler.submit(replace(request("hold"), tenant="theirs"))
        mine = await scheduler.submit(replace(request("hold"), tenant="mine"))
        assert (await anext(heard)).id == mine.id
        await scheduler.cancel(mine.id)
        job = await anext(heard)
        while job.state is not JobState.CANCELLED:
            job = await anext(heard)
        assert job.id == mine.id
        await heard.aclose()
