"""Real runs as jobs of a scheduler actor."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.scheduler.sft_material import settings

from tinker_actors.actors import Mesh
from tinker_actors.errors import JobRefusedError, JobStateError, UnknownJobError
from tinker_actors.scheduler import load_config
from tinker_actors.scheduler.demand import kind_of, need_of, request_of
from tinker_actors.scheduler.resources import Resources
from tinker_actors.scheduler.scheduler_settings import SchedulerSettings
from tinker_actors.scheduler.service import Scheduler
from tinker_actors.scheduler.states import JobKind, JobState, Reason

CAPACITY = Resources(adapter_slots=1, cpu_workers=2)


@pytest.mark.slow
async def test_a_supervised_run_is_submitted_cancelled_resumed_and_succeeds(tmp_path: Path):
    config = load_config(None, settings(tmp_path, "--trainer.epochs", "2"))
    broken = load_config(None, [*settings(tmp_path, "--name", "broken"), "--data.train", str(tmp_path / "none.jsonl")])
    async with Mesh() as mesh:
        scheduler = await mesh.spawn(Scheduler, str(tmp_path / "scheduler"), CAPACITY)
        job = await scheduler.submit(request_of(config, tenant="a"))
        with pytest.raises(UnknownJobError, match=job.id):
            await scheduler.cancel(job.id, tenant="b")
        assert await scheduler.jobs(tenant="b") == []
        assert (await scheduler.wait(job.id, (JobState.RUNNING,))).state is JobState.RUNNING
        refused = await scheduler.submit(request_of(broken))
        await scheduler.cancel(job.id, tenant="a")
        assert (await scheduler.wait(job.id)).state is JobState.CANCELLED
        failed = await scheduler.wait(refused.id)
        assert (failed.state, failed.reason) == (JobState.FAILED, Reason.START_FAILED)
        assert "none.jsonl" in failed.detail
        await scheduler.resume(job.id)
        assert (await scheduler.wait(job.id)).state is JobState.SUCCEEDED
        with pytest.raises(JobStateError, match="succeeded"):
            await scheduler.resume(job.id)
        folder = Path(await scheduler.folder(job.id))
        assert await scheduler.free() == CAPACITY
        assert (await scheduler.job(job.id)).attempt == 2
        assert [line.wanted for line in await scheduler.transitions(job.id)][-1] is JobState.SUCCEEDED
    records = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records if record["kind"] == "step"] == list(range(1, 9))
    assert json.loads((folder / "run" / "summary.json").read_text())["steps"] == 8
    assert "evaluation after step 8" in (folder / "output.log").read_text()


async def test_a_scheduler_refuses_what_never_fits_in_another_process(tmp_path: Path):
    config = load_config(None, settings(tmp_path))
    async with Mesh(nodes=2) as mesh:
        scheduler = await mesh.spawn(
            Scheduler, str(tmp_path / "scheduler"), CAPACITY, settings=SchedulerSettings(save_grace=60.0), node=1
        )
        with pytest.raises(JobRefusedError, match=r"resources\.devices is 1, but all that there is is devices 0"):
            await scheduler.submit(request_of(config, devices=1))


@pytest.mark.parametrize(
    ("overrides", "kind", "need"),
    [
        ((), JobKind.RL_LORA, Resources(adapter_slots=1, cpu_workers=4)),
        (("--policy.kind", "full"), JobKind.RL_FULL, Resources(cpu_workers=4)),
        (("--trainer.steps", "0"), JobKind.EVALUATION, Resources(adapter_slots=1, cpu_workers=4)),
        (
            ("--environment.isolation", "process", "--environment.pool", "2"),
            JobKind.RL_LORA,
            Resources(adapter_slots=1, cpu_workers=8),
        ),
        (
            ("--environment.isolation", "process", "--evaluation.workers", "1"),
            JobKind.RL_LORA,
            Resources(adapter_slots=1, cpu_workers=8),
        ),
    ],
)
def test_what_a_configuration_is_and_needs(overrides: tuple[str, ...], kind: JobKind, need: Resources):
    config = load_config(None, ["--environment.name", "bandit", "--rollouts.workers", "2", *overrides])
    assert (kind_of(config), need_of(config)) == (kind, need)
