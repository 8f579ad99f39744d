"""What a job made is sampled through the gateway by its tenant."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.job_gateways import GUESS, Desk, desk, make_snapshots

from tinker_actors.gateway.config import ServeConfig
from tinker_actors.gateway.jobs.handover import handing_over
from tinker_actors.gateway.opening import served_models
from tinker_actors.gateway.runtime import ServedModel
from tinker_actors.models import load_base, save_model_directory
from tinker_actors.scheduler.followers import Followers
from tinker_actors.scheduler.job_folder import JobFolder
from tinker_actors.scheduler.run_folder import RunFolder

TINY = ServedModel(name="tiny/llama", base_model="tiny-llama", sampler={"threads": 1}, trainer={"threads": 1})


async def made(at: Desk, job: str, base: str = "tiny-llama") -> None:
    await make_snapshots(at.gateway.runtime.mesh, JobFolder(at.folder / "jobs" / job), base)


async def checkpoints(at: Desk, tenant: str) -> list[str]:
    answer = await at.http.get("/api/v1/checkpoints", headers={"X-Tenant": tenant})
    return [record["tinker_path"] for record in answer.json()["checkpoints"]]


async def handed_over(at: Desk, job: str) -> None:
    """Wait until what a job made has been looked at."""
    async with asyncio.timeout(60):
        while not (at.folder / "jobs" / job / "handed-over").exists():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.02)


async def complete(at: Desk, model: str, tenant: str) -> Any:
    body = {"model": model, "prompt": "a", "max_tokens": 2}
    return await at.http.post("/v1/completions", json=body, headers={"X-Tenant": tenant})


async def test_the_last_snapshot_of_a_job_that_succeeds_is_a_checkpoint_of_its_tenant(tmp_path: Path):
    async with desk(tmp_path, models=[TINY]) as at:
        job = (await at.submit("a"))["id"]
        await at.running(job)
        await made(at, job)
        path = f"tinker://{job}:policy/sampler_weights/000002"
        async with handing_over(at.gateway):
            at.finish(job)
            await handed_over(at, job)
        listed = (await at.http.get(f"/jobs/v1/jobs/{job}/snapshots", headers={"X-Tenant": "a"})).json()["snapshots"]
        assert [(entry["name"], entry["checkpoint"]) for entry in listed] == [("000001", False), ("000002", True)]
        assert listed[1]["path"] == path
        answer = await complete(at, path, "a")
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] >= 1
        assert (await complete(at, path, "b")).status_code == 404
        assert await checkpoints(at, "b") == []


async def test_what_jobs_make_is_taken_over_although_following_them_failed_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tinker_actors.gateway.jobs.handover._AGAIN", 0.0)
    joined, failures = Followers.joined, [OSError("no descriptor is left")]

    def failing_once(self: Followers, tenant: str | None) -> Any:
        if failures:
            raise failures.pop()
        return joined(self, tenant)

    monkeypatch.setattr(Followers, "joined", failing_once)
    async with desk(tmp_path, models=[TINY]) as at:
        job = (await at.submit("a"))["id"]
        await at.running(job)
        await made(at, job)
        async with handing_over(at.gateway):
            at.finish(job)
            await handed_over(at, job)
        assert not failures
        assert await checkpoints(at, "a") == [f"tinker://{job}:policy/sampler_weights/000002"]


async def test_another_snapshot_becomes_one_when_that_is_asked_and_a_deleted_one_stays_deleted(tmp_path: Path):
    async with desk(tmp_path, models=[TINY]) as at:
        job = (await at.submit("a"))["id"]
        await at.running(job)
        await made(at, job)
        route = f"/jobs/v1/jobs/{job}/snapshots/policy/000001/checkpoint"
        first = await at.http.post(route, headers={"X-Tenant": "a"})
        assert first.json() == {"path": f"tinker://{job}:policy/sampler_weights/000001", "base_model": "tiny/llama"}
        assert (await at.http.post(route, headers={"X-Tenant": "a"})).json() == first.json()
        for url in (route, route.replace("000001", "000009"), route.replace("policy/0", "..%2f..%2fx/0")):
            assert (await at.http.post(url, headers={"X-Tenant": "b"})).status_code == 404
        assert (await at.http.post(route.replace("000001", "000009"), headers={"X-Tenant": "a"})).status_code == 404
        at.finish(job)
        await at.over(job)
        last = f"tinker://{job}:policy/sampler_weights/000002"
        for _ in range(2):  # the second time is that of a service that is started anew
            async with handing_over(at.gateway):
                await handed_over(at, job)
            if last in await checkpoints(at, "a"):
                await at.gateway.checkpoints.delete(at.gateway.records.checkpoints.where("path = ?", last)[0])
        assert last not in await checkpoints(at, "a")


async def test_what_stands_on_a_base_model_that_is_not_served_is_told_and_not_taken(tmp_path: Path):
    async with desk(tmp_path, models=[TINY]) as at:
        job = (await at.submit())["id"]
        await at.running(job)
        await made(at, job, base="tiny-llama:seed=3")
        refused = await at.http.post(f"/jobs/v1/jobs/{job}/snapshots/policy/000001/checkpoint")
        assert (refused.status_code, refused.json()["code"]) == (409, "not_served")


async def test_the_base_model_that_a_job_made_is_named_served_and_kept_as_long_as_it_is(tmp_path: Path):
    async with desk(tmp_path, models=[TINY]) as at:
        job = (await at.submit())["id"]
        await at.running(job)
        folder = JobFolder(at.folder / "jobs" / job)
        base = RunFolder(folder.run).base
        none = await at.http.post("/jobs/v1/jobs", json={"config": GUESS | {"model": {"name": f"job:{job}"}}})
        assert (none.status_code, "warm-up of all weights is needed" in none.json()["detail"]) == (400, True)
        save_model_directory(load_base("tiny-llama").skeleton(), "tiny-llama", base)
        await made(at, job, base=str(base))
        refused = await at.http.post(f"/jobs/v1/jobs/{job}/snapshots/policy/000001/checkpoint")
        assert refused.status_code == 409
        assert f"its base model is 'job:{job}', which is not served here" in refused.json()["detail"]
        assert f"serve it as a model with base = 'job:{job}'" in refused.json()["detail"]
        named = await at.submit(config=GUESS | {"model": {"name": f"job:{job}"}})
        assert named["config"]["model"]["name"] == f"job:{job}"
        await at.http.post(f"/jobs/v1/jobs/{named['id']}/cancel")
        foreign = {"json": {"config": GUESS | {"model": {"name": f"job:{job}"}}}, "headers": {"X-Tenant": "b"}}
        assert (await at.http.post("/jobs/v1/jobs", **foreign)).status_code == 404
        at.finish(job)
        await at.over(job)
        async with handing_over(at.gateway):
            pass
    config = ServeConfig.model_validate({"root": str(tmp_path), "models": {"own": {"base": f"job:{job}"}}})
    async with desk(tmp_path, models=served_models(config, tmp_path / "scheduler")) as at, handing_over(at.gateway):
        await handed_over(at, job)
        answer = await complete(at, f"tinker://{job}:policy/sampler_weights/000002", "local")
        assert answer.status_code == 200, answer.text
        kept = await at.http.delete(f"/jobs/v1/jobs/{job}")
        assert (kept.status_code, kept.json()["code"]) == (409, "in_use")
        assert "served here as 'own'" in kept.json()["detail"]
