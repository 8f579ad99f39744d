"""Jobs over HTTP: submitted, followed and ended, each tenant its own."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from starlette.requests import HTTPConnection
from tests.gateway.gateways import gateway_at
from tests.gateway.job_gateways import GUESS, all_of, desk

from tinker_actors.gateway import jobs
from tinker_actors.gateway.caller import Caller
from tinker_actors.gateway.jobs.following import Ends, file_rows
from tinker_actors.gateway.jobs.uploads import Upload, Uploads
from tinker_actors.gateway.refusals import RefusalError


async def test_a_job_is_submitted_followed_to_its_end_and_tells_how_it_came_there(tmp_path: Path):
    async with desk(tmp_path) as at:
        job = await at.submit(priority=3)
        assert (job["kind"], job["name"], job["priority"], job["over"]) == ("rl-lora", "guess", 3, False)
        assert job["config"]["environment"]["name"] == "number_guess"
        await at.running(job["id"])
        log = asyncio.create_task(all_of(at.http, f"/jobs/v1/jobs/{job['id']}/logs", params={"follow": True}))
        rows = asyncio.create_task(all_of(at.http, f"/jobs/v1/jobs/{job['id']}/metrics", params={"follow": True}))
        await asyncio.sleep(0)
        assert not log.done()
        at.finish(job["id"])
        assert await log == "attempt 1 begins\nand ends\n"
        assert [json.loads(row)["step"] for row in (await rows).splitlines()] == [0, 1, 2]
        assert (await at.over(job["id"]))["state"] == "succeeded"
        lines = (await at.http.get(f"/jobs/v1/jobs/{job['id']}/transitions")).json()["transitions"]
        assert [line["wanted"] for line in lines] == ["queued", "starting", "running", "succeeded"]


async def test_who_follows_a_job_hears_no_more_once_its_key_is_revoked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jobs.reading, "_LET_IN", 0.0)

    def revoked(_: HTTPConnection) -> Caller:
        raise RefusalError(401, "revoked", code="invalid_api_key")

    async with desk(tmp_path) as at:
        job = (await at.submit())["id"]
        await at.running(job)
        monkeypatch.setattr(at.gateway, "admit", revoked)  # for requests under way: the gate has its own
        async with asyncio.timeout(60):
            for what in ("logs", "metrics"):
                assert await all_of(at.http, f"/jobs/v1/jobs/{job}/{what}", params={"follow": True}) == ""
                assert await all_of(at.http, f"/jobs/v1/jobs/{job}/{what}")
        at.finish(job)
        await at.over(job)


async def test_a_reader_goes_on_from_where_it_was(tmp_path: Path):
    async with desk(tmp_path) as at:
        job = (await at.submit())["id"]
        await at.running(job)
        at.finish(job)
        await at.over(job)
        whole = "attempt 1 begins\nand ends\n"
        for query, text, offset in (
            ({"offset": 10}, whole[10:], 10),
            ({"tail": 5}, whole[-5:], len(whole) - 5),
            ({"tail": 1000}, whole, 0),
            ({"offset": 1000}, "", 1000),
        ):
            answer = await at.http.get(f"/jobs/v1/jobs/{job}/logs", params=query)
            assert (answer.text, answer.headers["x-offset"]) == (text, str(offset))
        rows = (await at.http.get(f"/jobs/v1/jobs/{job}/metrics", params={"start": 2})).text
        assert json.loads(rows) == {"step": 2, "kind": "step"}


async def test_rows_that_a_resumed_job_writes_again_come_again_and_no_others(tmp_path: Path):
    path, over = tmp_path / "metrics.jsonl", asyncio.Event()
    path.write_text("0\n1\n2\n")
    ends = Ends(over.wait())
    rows = file_rows(path, 1, ends)
    assert await anext(rows) == b"1\n2\n"
    draft = path.with_suffix(".partial")
    draft.write_text("0\n1\n")
    draft.replace(path)
    with path.open("a") as file:
        file.write("2 anew\n3\nunfini")
    assert await anext(rows) == b"2 anew\n3\n"
    over.set()
    with pytest.raises(StopAsyncIteration):
        await anext(rows)
    await ends.close()


async def test_a_submission_with_a_key_can_be_repeated_and_another_tenants_is_another(tmp_path: Path):
    async with desk(tmp_path) as at:
        first = await at.submit(key="k")
        assert (await at.submit(key="k"))["id"] == first["id"]
        assert (await at.submit("other", key="k"))["id"] != first["id"]


async def test_a_job_is_cancelled_and_resumed_and_what_is_over_is_not(tmp_path: Path):
    async with desk(tmp_path) as at:
        job = (await at.submit())["id"]
        await at.running(job)
        assert (await at.http.post(f"/jobs/v1/jobs/{job}/cancel")).json()["state"] == "cancelling"
        assert (await at.over(job))["state"] == "cancelled"
        assert (await at.http.post(f"/jobs/v1/jobs/{job}/resume")).json()["state"] == "starting"
        await at.running(job)
        at.finish(job)
        assert (await at.over(job))["state"] == "succeeded"
        refused = await at.http.post(f"/jobs/v1/jobs/{job}/resume")
        assert (refused.status_code, refused.json()["code"]) == (409, "wrong_state")
        assert (await at.http.post(f"/jobs/v1/jobs/{job}/cancel")).json()["state"] == "succeeded"


async def test_lists_are_filtered_and_paged(tmp_path: Path):
    async with desk(tmp_path, capacity=1) as at:
        ids = [(await at.submit())["id"] for _ in range(5)]
        url = "/jobs/v1/jobs"
        page = (await at.http.get(url, params={"limit": 2})).json()
        assert [job["id"] for job in page["jobs"]] == ids[:2:-1]
        rest = (await at.http.get(url, params={"before": page["before"], "limit": 10})).json()
        assert ([job["id"] for job in rest["jobs"]], rest["before"]) == (ids[2::-1], None)
        queued = (await at.http.get(url, params={"state": "queued"})).json()["jobs"]
        assert [job["id"] for job in queued] == ids[:0:-1]
        assert (await at.http.get(url, params={"kind": "sft"})).json()["jobs"] == []
        assert (await at.http.get(url, params={"state": "asleep"})).status_code == 422
        refused = await at.http.get(url, params={"limit": 0})
        assert refused.json()["error"].startswith("limit is '0': Input should be greater than or equal to 1")


async def test_another_tenants_jobs_look_as_if_they_were_not_there(tmp_path: Path):
    async with desk(tmp_path) as at:
        job = (await at.submit("a"))["id"]
        for method, route in (
            ("GET", ""),
            ("GET", "/transitions"),
            ("GET", "/wait"),
            ("GET", "/logs"),
            ("GET", "/metrics"),
            ("GET", "/replies"),
            ("POST", "/cancel"),
            ("POST", "/resume"),
        ):
            seen = [
                await at.http.request(method, f"/jobs/v1/jobs/{name}{route}", headers={"X-Tenant": "b"})
                for name in (job, "job-0")
            ]
            assert [answer.status_code for answer in seen] == [404, 404]
            assert seen[0].text.replace(job, "job-0") == seen[1].text
        assert (await at.http.get("/jobs/v1/jobs", headers={"X-Tenant": "b"})).json()["jobs"] == []
        assert len((await at.http.get("/jobs/v1/jobs", headers={"X-Tenant": "root"})).json()["jobs"]) == 1
        assert (await at.http.get(f"/jobs/v1/jobs/{job}", headers={"X-Tenant": "a"})).json()["state"] != "cancelled"


async def test_what_can_never_run_is_refused_and_says_what_could(tmp_path: Path):
    async with desk(tmp_path, capacity=2) as at:
        big = GUESS | {"rollouts": {"workers": 7}}
        for body, named in (
            ({"config": big}, "cpu_workers is 8, but all that there is is cpu_workers 2"),
            ({"config": GUESS, "devices": 1}, "devices is 1"),
            ({"config": {"environment": {"name": "number_guess"}, "tainer": {}}}, "did you mean trainer?"),
            ({"config": GUESS, "priorty": 1}, "priorty"),
            ({"config": GUESS, "priority": 10**6}, "priority"),
        ):
            answer = await at.http.post("/jobs/v1/jobs", json=body)
            assert answer.status_code in (400, 422)
            assert named in answer.json()["detail"]


async def test_a_tenants_priority_is_bounded_by_its_quota_and_an_administrators_is_not(tmp_path: Path):
    async with desk(tmp_path, rules={"quotas": {"a": {"priority": 5}}}) as at:
        for tenant, priority, status in (("a", 5, 201), ("a", 6, 400), ("b", 1, 400), ("b", -1, 201), ("root", 9, 201)):
            body = {"config": GUESS, "priority": priority}
            answer = await at.http.post("/jobs/v1/jobs", json=body, headers={"X-Tenant": tenant})
            assert answer.status_code == status, (tenant, priority)


async def test_rows_are_uploaded_once_and_named_by_a_configuration(tmp_path: Path):
    async with desk(tmp_path) as at:
        rows = b'{"prompt": "1+1=", "completion": "2"}\n\n{"prompt": "\xc3\xa4", "completion": "a"}'
        first = (await at.http.post("/jobs/v1/uploads", content=rows)).json()
        again = (await at.http.post("/jobs/v1/uploads", content=rows + b"\n")).json()
        assert first == again
        assert first["rows"] == 2
        config = {"job": "sft", "data": {"train": first["upload"]}}
        job = await at.submit(config=config)
        assert job["config"]["data"]["train"] == [first["upload"]]
        stored = json.loads((at.folder / "jobs" / job["id"] / "job.json").read_text())["data"]["train"][0]
        assert [json.loads(line) for line in (at.folder / stored).read_text().splitlines()][1]["prompt"] == "ä"
        foreign = await at.http.post("/jobs/v1/jobs", json={"config": config}, headers={"X-Tenant": "b"})
        assert (foreign.status_code, foreign.json()["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("rows", "status", "named"),
    [
        (b"", 400, "no rows"),
        (b'{"a": 1}\n[1]\n', 400, "line 2 is no JSON object"),
        (b'{"a": 1}\n{"a"', 400, "line 2 is no JSON"),
        (b"\xff", 400, "line 1 is no JSON in UTF-8"),
        (b'{"a": NaN}', 400, "line 1"),
        (b'{"a": ' + b"[" * 100_000, 400, "nested"),
        (b'{"m": [{"content": [{"type": "image", "image": "/etc/passwd"}]}]}', 400, "no data URL"),
        (b'{"m": [{"type": "image_url", "image_url": {"url": "x.png"}}]}', 400, "no data URL"),
        (b'{"m": [{"type": "image", "image": {"path": "x.png"}}]}', 400, "no data URL"),
        (b'{"text": "' + b"a" * 2000 + b'"}', 413, "larger than the 1000 bytes"),
    ],
)
async def test_an_upload_that_cannot_be_used_is_refused_and_leaves_nothing(
    tmp_path: Path, rows: bytes, status: int, named: str
):
    async with desk(tmp_path, jobs={"upload_bytes": 1000}) as at:
        answer = await at.http.post("/jobs/v1/uploads", content=rows)
        assert answer.status_code == status
        assert named in answer.json()["detail"]
        assert list((at.folder / "uploads").glob("*/*")) == []


async def test_others_are_served_while_an_upload_is_checked_and_no_two_take_the_same_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    checked: set[int] = set()  # the threads on which rows are
    row = jobs.uploads._row
    monkeypatch.setattr(jobs.uploads, "_row", lambda *line: (checked.add(threading.get_ident()), row(*line))[1])
    uploads = Uploads(tmp_path, most=2**20, most_of_tenant=2**20)

    async def body(letter: bytes) -> AsyncIterator[bytes]:
        yield (b'{"text": "' + letter * 20 + b'"}\n') * 20_000

    first, second = await asyncio.gather(
        *(uploads.take("mine", body(letter)) for letter in (b"a", b"b")), return_exceptions=True
    )
    assert threading.get_ident() not in checked
    assert isinstance(first, Upload)
    assert first.rows == 20_000
    assert isinstance(second, RefusalError)
    assert second.status == 413


async def test_a_tenants_uploads_are_bounded_together(tmp_path: Path):
    async with desk(tmp_path, jobs={"upload_bytes_of_tenant": 100}) as at:
        assert (await at.http.post("/jobs/v1/uploads", content=b'{"a": "' + b"a" * 60 + b'"}')).status_code == 201
        refused = await at.http.post("/jobs/v1/uploads", content=b'{"b": "' + b"b" * 60 + b'"}')
        assert (refused.status_code, refused.json()["code"]) == (413, "too_large")
        others = await at.http.post("/jobs/v1/uploads", content=b'{"a": 1}', headers={"X-Tenant": "b"})
        assert others.status_code == 201


async def test_a_tenant_has_so_many_uploads_however_small(tmp_path: Path):
    async with desk(tmp_path, jobs={"uploads_of_tenant": 2}) as at:
        for row in (b'{"a": 1}', b'{"a": 2}'):
            assert (await at.http.post("/jobs/v1/uploads", content=row)).status_code == 201
        refused = await at.http.post("/jobs/v1/uploads", content=b'{"a": 3}')
        assert (refused.status_code, refused.json()["code"]) == (413, "too_many")
        assert "2 are kept: delete some" in refused.json()["detail"]
        assert (await at.http.post("/jobs/v1/uploads", content=b'{"a": 2}')).status_code == 201  # as it is there
        others = await at.http.post("/jobs/v1/uploads", content=b'{"a": 3}', headers={"X-Tenant": "b"})
        assert others.status_code == 201
        assert sorted(path.suffix for path in (at.folder / "uploads" / "local").iterdir()) == [".jsonl"] * 2


async def test_a_tenant_has_so_many_jobs(tmp_path: Path):
    async with desk(tmp_path, capacity=1, jobs={"unfinished_of_tenant": 2, "kept_of_tenant": 3}) as at:
        first, second = await at.submit("a", key="first"), await at.submit("a")
        asked = {"json": {"config": GUESS}, "headers": {"X-Tenant": "a"}}
        full = await at.http.post("/jobs/v1/jobs", **asked)
        assert (full.status_code, full.json()["code"], full.headers["retry-after"]) == (429, "too_many_jobs", "30")
        assert "2 jobs that aren't over; at most 2 may be" in full.json()["detail"]
        assert (await at.submit("a", key="first"))["id"] == first["id"]  # it is there, and adds none
        await at.submit("b")
        cancelled = await at.http.post(f"/jobs/v1/jobs/{second['id']}/cancel", headers={"X-Tenant": "a"})
        assert cancelled.json()["state"] == "cancelled"
        third = await at.submit("a")
        for api in ("jobs/v1", "dashboard/api"):
            back = await at.http.post(f"/{api}/jobs/{second['id']}/resume", headers={"X-Tenant": "a"})
            assert (back.status_code, back.json()["code"]) == (429, "too_many_jobs")
        await at.http.post(f"/jobs/v1/jobs/{third['id']}/cancel", headers={"X-Tenant": "a"})
        kept = await at.http.post("/jobs/v1/jobs", **asked)
        assert (kept.status_code, kept.json()["code"]) == (429, "too_many_jobs")
        assert "3 jobs; at most 3 are kept: delete some" in kept.json()["detail"]
        gone = await at.http.delete(f"/jobs/v1/jobs/{third['id']}", headers={"X-Tenant": "a"})
        assert gone.status_code == 200
        assert (await at.http.post("/jobs/v1/jobs", **asked)).status_code == 201


async def test_a_configuration_of_any_size_is_not_kept(tmp_path: Path):
    async with desk(tmp_path) as at:
        config = {**GUESS, "environment": {"name": "number_guess", "options": {"x": "x" * 2**18}}}
        refused = await at.http.post("/jobs/v1/jobs", json={"config": config})
        assert (refused.status_code, refused.json()["code"]) == (413, "body_too_large")


async def test_the_interface_is_described(tmp_path: Path):
    async with desk(tmp_path) as at:
        described = (await at.http.get("/openapi.json")).json()
        submission = described["components"]["schemas"]["Submission"]
        assert set(submission["properties"]) == {"config", "priority", "devices", "memory", "key"}
        assert "/jobs/v1/jobs/{job}/logs" in described["paths"]


async def test_a_gateway_without_a_scheduler_says_so(tmp_path: Path):
    async with gateway_at(tmp_path) as (_, http):
        answer: httpx.Response = await http.get("/jobs/v1/jobs")
        assert (answer.status_code, answer.json()["code"]) == (404, "no_jobs")
