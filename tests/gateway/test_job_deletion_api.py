"""Jobs and uploads are deleted over HTTP: by their tenant, when nothing needs them, and when their time is over."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from tests.gateway.gateways import TINY
from tests.gateway.job_gateways import GUESS, Desk, desk, make_snapshots

from tinker_actors.gateway.jobs.deleting import Retention
from tinker_actors.policies import SnapshotStore
from tinker_actors.scheduler.job_folder import JobFolder

JOBS, UPLOADS = "/jobs/v1/jobs", "/jobs/v1/uploads"
ROW = b'{"prompt": "1+1=", "completion": "2"}\n'


async def ended(at: Desk, tenant: str = "local") -> str:
    """A job that has succeeded."""
    job = (await at.submit(tenant))["id"]
    await at.running(job)
    at.finish(job)
    assert (await at.over(job))["state"] == "succeeded"
    return job


async def test_a_job_that_is_over_is_deleted_once_and_by_its_tenant_alone(tmp_path: Path):
    async with desk(tmp_path) as at:
        job, running = await ended(at, "a"), (await at.submit("a"))["id"]
        await at.running(running)
        refused = await at.http.delete(f"{JOBS}/{running}", headers={"X-Tenant": "a"})
        assert (refused.status_code, refused.json()["code"]) == (409, "wrong_state")
        assert "cancel it first" in refused.json()["detail"]
        assert (await at.http.delete(f"{JOBS}/{job}", headers={"X-Tenant": "b"})).status_code == 404
        twice = await asyncio.gather(
            *(at.http.delete(f"{JOBS}/{job}", headers={"X-Tenant": name}) for name in ("a", "root"))
        )
        assert sorted(answer.status_code for answer in twice) == [200, 404]
        assert not (at.folder / "jobs" / job).exists()
        for route in ("", "/logs", "/metrics", "/transitions", "/snapshots"):
            assert (await at.http.get(f"{JOBS}/{job}{route}", headers={"X-Tenant": "a"})).status_code == 404
        listed = (await at.http.get(JOBS, headers={"X-Tenant": "a"})).json()["jobs"]
        assert [left["id"] for left in listed] == [running]
        page = (await at.http.get("/dashboard/api/jobs", headers={"X-Tenant": "a"})).json()
        assert [left["id"] for left in page["jobs"]] == [running]
        assert page["counts"]["succeeded"] == 0


@pytest.mark.parametrize("checkpoints", [False, True])
async def test_what_a_job_made_stays_as_checkpoints_unless_those_are_to_go_too(tmp_path: Path, checkpoints: bool):
    async with desk(tmp_path, models=[TINY]) as at:
        job = (await at.submit())["id"]
        await at.running(job)
        await make_snapshots(at.gateway.runtime.mesh, JobFolder(at.folder / "jobs" / job))
        at.finish(job)
        await at.over(job)  # nobody has taken over yet what it made
        first = await at.http.post(f"{JOBS}/{job}/snapshots/policy/000001/checkpoint")
        assert first.status_code == 200
        answer = await at.http.delete(f"{JOBS}/{job}", params={"checkpoints": checkpoints})
        assert answer.json() == {"deleted": job}
        kept = [] if checkpoints else ["000001", "000002"]
        paths = [f"tinker://{job}:policy/sampler_weights/{name}" for name in kept]
        found = at.gateway.records.checkpoints.where("1")
        assert sorted(record.path for record in found) == paths
        store = SnapshotStore(at.gateway.runtime.store)
        for record in found:
            assert list(store.fetch(store.get(record.handle)).iterdir())
        if checkpoints:
            assert f"{job}:policy" not in store.policies() or not store.list(f"{job}:policy")


async def test_a_job_stays_while_another_one_that_is_not_over_needs_what_it_made(tmp_path: Path):
    async with desk(tmp_path) as at:
        job = await ended(at)
        seats = {"a": {"player": "snapshot", "store": f"job:{job}", "snapshot": "latest", "policy": "policy"}}
        user = await at.submit(
            config={"name": "u", "environment": {"name": "last_word"}, "rollouts": {"workers": 0}, "seats": seats}
        )
        refused = await at.http.delete(f"{JOBS}/{job}", params={"checkpoints": True})
        assert (refused.status_code, refused.json()["detail"]) == (
            409,
            f"job {job} is used by {user['id']}, which isn't over; cancel that first",
        )
        await at.http.post(f"{JOBS}/{user['id']}/cancel")
        await at.over(user["id"])
        assert (await at.http.delete(f"{JOBS}/{job}")).status_code == 200


async def test_uploads_are_listed_and_go_when_no_job_needs_them(tmp_path: Path):
    async with desk(tmp_path) as at:
        mine = {"X-Tenant": "a"}
        name = (await at.http.post(UPLOADS, content=ROW, headers=mine)).json()["upload"]
        config = {"job": "sft", "data": {"train": name}}
        job = await at.submit("a", config=config)
        listed = (await at.http.get(UPLOADS, headers=mine)).json()
        assert [(kept["upload"], kept["bytes"], kept["jobs"]) for kept in listed["uploads"]] == [
            (name, len(ROW), [job["id"]])
        ]
        assert (listed["bytes"], listed["most"]) == (len(ROW), 2**32)
        refused = await at.http.delete(f"{UPLOADS}/{name}", headers=mine)
        assert (refused.status_code, refused.json()["code"]) == (409, "in_use")
        assert job["id"] in refused.json()["detail"]
        await at.http.post(f"{JOBS}/{job['id']}/cancel", headers=mine)
        await at.over(job["id"])
        assert (await at.http.get(UPLOADS, headers={"X-Tenant": "b"})).json()["uploads"] == []
        for tenant in ("b", "../a", "a/../a"):
            theirs = await at.http.delete(f"{UPLOADS}/{name}", params={"tenant": tenant}, headers={"X-Tenant": "b"})
            assert theirs.status_code == 404
        stolen = await at.http.delete(f"{UPLOADS}/{name}", params={"tenant": "a"}, headers={"X-Tenant": "b"})
        assert stolen.status_code == 404
        assert len((await at.http.get(UPLOADS, headers={"X-Tenant": "root"})).json()["uploads"]) == 1
        by_admin = {"params": {"tenant": "a"}, "headers": {"X-Tenant": "root"}}
        codes = [(await at.http.delete(f"{UPLOADS}/{name}", **by_admin)).status_code for _ in range(2)]
        assert codes == [200, 404]
        assert list((at.folder / "uploads" / "a").iterdir()) == []
        again = await at.http.post(JOBS, json={"config": config}, headers=mine)
        assert (again.status_code, again.json()["code"]) == (404, "not_found")


async def test_what_a_submission_names_is_not_deleted_before_its_job_is_taken(tmp_path: Path):
    async with desk(tmp_path) as at:
        for _ in range(5):
            name = (await at.http.post(UPLOADS, content=ROW)).json()["upload"]
            config = {"job": "sft", "data": {"train": name}}
            taken, gone = await asyncio.gather(
                at.http.post(JOBS, json={"config": config}), at.http.delete(f"{UPLOADS}/{name}")
            )
            assert (taken.status_code, gone.status_code) in ((201, 409), (404, 200))
            if taken.status_code == 201:
                await at.http.post(f"{JOBS}/{taken.json()['id']}/cancel")
                await at.over(taken.json()["id"])


async def test_what_was_kept_long_enough_is_deleted_and_nothing_else(tmp_path: Path):
    async with desk(tmp_path) as at:
        retention = Retention(at.gateway, jobs=100.0, uploads=200.0)
        old, used = await ended(at, "a"), (await at.http.post(UPLOADS, content=ROW)).json()["upload"]
        unused = (await at.http.post(UPLOADS, content=b'{"text": "b"}\n')).json()["upload"]
        running = await at.submit(config={"job": "sft", "data": {"train": used}})
        now = time.time()
        assert 90 < await retention.sweep(now) <= 100
        assert len((await at.http.get(JOBS, headers={"X-Tenant": "root"})).json()["jobs"]) == 2
        pause = await retention.sweep(now + 150)
        assert 40 < pause <= 100
        assert (await at.http.get(f"{JOBS}/{old}", headers={"X-Tenant": "root"})).status_code == 404
        assert len((await at.http.get(UPLOADS)).json()["uploads"]) == 2
        await retention.sweep(now + 250)
        left = (await at.http.get(UPLOADS)).json()["uploads"]
        assert [kept["upload"] for kept in left] == [used]
        assert unused not in str(left)
        assert (await at.http.get(f"{JOBS}/{running['id']}")).status_code == 200


async def test_a_deleted_jobs_log_that_somebody_follows_ends(tmp_path: Path):
    async with desk(tmp_path) as at:
        job = await ended(at)
        assert (await at.http.delete(f"{JOBS}/{job}")).status_code == 200
        assert (await at.http.get(f"{JOBS}/{job}/logs", params={"follow": True})).status_code == 404
        assert (await at.submit(config=GUESS))["id"] != job
