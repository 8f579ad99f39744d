"""A job has no more than was granted: threads, processes, and adapters in its sampler."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tinker_actors.actors import Mesh
from tinker_actors.errors import ConfigError
from tinker_actors.policies import PolicySpec
from tinker_actors.sampling import SamplingParams, SamplingRequest
from tinker_actors.scheduler import load_config
from tinker_actors.scheduler.config import RunConfig
from tinker_actors.scheduler.demand import need_of, request_of
from tinker_actors.scheduler.grant import VARIABLE, environment_of, granted, within
from tinker_actors.scheduler.resources import Allocation, Resources
from tinker_actors.scheduler.scheduler_settings import SchedulerSettings
from tinker_actors.scheduler.service import Scheduler
from tinker_actors.scheduler.states import JobState, Reason
from tinker_actors.scheduler.verdict import RetryPolicy
from tinker_actors.training import Trainer

REPORTING = f"{Path(__file__).with_name('reporting_game.py')}:Reporting"
ROOM = Resources(adapter_slots=8, cpu_workers=8)


def bandit(*overrides: str) -> RunConfig:
    config = load_config(None, ["--environment.name", "bandit", "--rollouts.workers", "0", *overrides])
    assert isinstance(config, RunConfig)
    return config


@pytest.mark.parametrize(
    ("overrides", "slots", "workers"),
    [
        ((), 1, 2),
        (("--trainer.threads", "5"), 1, 5),
        (("--rollouts.workers", "3", "--evaluation.workers", "1", "--trainer.threads", "1"), 1, 5),
        (("--rollouts.submit_ahead", "2"), 3, 2),
        (("--seats.player.player", "snapshot", "--seats.other.player", "policy"), 2, 2),
        (("--seats.a.player", "league", "--seats.a.policy", "policy", "--seats.b.player", "policy"), 17, 2),
        (("--seats.a.player", "league", "--seats.a.size", "3", "--seats.b.player", "policy"), 4, 2),
        (("--seats.a.player", "league", "--seats.b.player", "policy", "--sampler.local.max_adapters", "2"), 2, 2),
        (("--policy.kind", "full"), 0, 2),
    ],
)
def test_a_job_needs_what_it_computes_with(overrides: tuple[str, ...], slots: int, workers: int):
    assert need_of(bandit(*overrides)) == Resources(adapter_slots=slots, cpu_workers=workers)


@pytest.mark.parametrize(
    ("overrides", "grant", "named"),
    [
        (("--rollouts.workers", "3"), Resources(adapter_slots=1, cpu_workers=4), "resources.cpu_workers 5, and was gr"),
        (("--trainer.threads", "3"), Resources(adapter_slots=1, cpu_workers=2), "granted 2; ask for 3"),
        (("--rollouts.submit_ahead", "1"), Resources(adapter_slots=1, cpu_workers=2), "resources.adapter_slots 2"),
    ],
)
def test_a_configuration_that_needs_more_than_was_granted_is_refused(
    overrides: tuple[str, ...], grant: Resources, named: str
):
    with pytest.raises(ConfigError, match=named):
        within(bandit(*overrides), grant)


def test_a_grant_travels_in_the_environment_and_bounds_every_library():
    grant = Allocation(amount=Resources(cpu_workers=3, adapter_slots=2), devices=(1,))
    told = environment_of(grant, Resources(devices=2))
    assert granted(told) == grant.amount
    assert {value for name, value in told.items() if name.endswith("_NUM_THREADS")} == {"3"}
    assert told["CUDA_VISIBLE_DEVICES"] == "1"
    assert granted({}) is None
    assert VARIABLE in told


async def test_a_sampler_holds_no_more_adapters_at_once_than_there_are_slots(tmp_path: Path):
    config = within(bandit("--trainer.threads", "1"), Resources(adapter_slots=2, cpu_workers=2))
    async with Mesh() as mesh:
        trainer = await mesh.spawn(Trainer, base_model="tiny-llama", store=str(tmp_path), threads=1)
        handles: list[str] = []
        for number in range(4):
            await trainer.create(PolicySpec(base_model="tiny-llama", rank=1, name=f"p{number}"))
            handles.append((await trainer.publish(f"p{number}")).handle)
            await trainer.delete(f"p{number}")
        sampler = await config.sampler.spawn(mesh, config, base_model="tiny-llama", store=str(tmp_path))
        await sampler.refresh(handles)
        params = SamplingParams(max_tokens=2, seed=1)
        for handle in handles * 2:
            reply = await sampler.sample(SamplingRequest(snapshot=handle, prompt=(5, 6, 7), params=params))
            assert reply.samples
        stats = await sampler.stats()
        assert stats.adapters_loaded == 2
        assert set(stats.snapshots) == set(handles)


@pytest.mark.slow
async def test_the_processes_of_a_job_compute_with_its_threads(tmp_path: Path):
    report = tmp_path / "report.jsonl"
    config = bandit(
        *("--environment.name", REPORTING, "--environment.options.path", str(report)),
        *("--rollouts.workers", "1", "--trainer.threads", "3", "--trainer.steps", "0", "--evaluation.episodes", "2"),
    )
    asking = request_of(config)
    assert asking.need.cpu_workers == 4
    async with Mesh() as mesh:
        scheduler = await mesh.spawn(
            Scheduler, str(tmp_path / "scheduler"), ROOM, settings=SchedulerSettings(retry=RetryPolicy(retries=0))
        )
        job = await scheduler.wait((await scheduler.submit(asking)).id)
        assert job.state is JobState.SUCCEEDED, job.detail
        found = [json.loads(line) for line in report.read_text().splitlines()]
        own = [(entry["threads"], entry["openmp"]) for entry in found if entry["pid"] == found[0]["pid"]]
        assert own[-1] == (3, "1")  # once the task server knows what it runs
        assert max(threads for threads, _ in own) <= asking.need.cpu_workers
        workers = {(entry["threads"], entry["openmp"]) for entry in found if entry["pid"] != found[0]["pid"]}
        assert workers == {(1, "1")}
        less = replace(asking, need=replace(asking.need, cpu_workers=3))
        refused = await scheduler.wait((await scheduler.submit(less)).id)
        assert (refused.state, refused.reason) == (JobState.FAILED, Reason.START_FAILED)
        assert "the job needs resources.cpu_workers 4, and was granted 3" in refused.detail


def test_a_task_server_computes_with_its_own_threads_and_lets_its_children_have_one():
    program = (
        "import os, sys, threading, torch; from tinker_actors.scheduler import load_config;"
        "from tinker_actors.scheduler.grant import use_threads_of;"
        "use_threads_of(load_config(None, ['--environment.name', 'bandit', '--trainer.threads', '3']));"
        "found = [torch.get_num_threads()];"
        "other = threading.Thread(target=lambda: found.append(torch.get_num_threads())); other.start(); other.join();"
        "print(found, os.environ['OMP_NUM_THREADS'])"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout == "[3, 3] 1\n"
