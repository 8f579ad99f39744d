"""The dashboard's data: whose it is, what a stream tells, and how files are followed while they are written."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.console.recorded import episode, trajectory, turn
from tests.gateway.dashboards import Dashboard, dashboard, measure, play

from tinker_actors.gateway.admission import Admission
from tinker_actors.gateway.dashboard import episodes
from tinker_actors.gateway.dashboard.metrics_file import MOST_RECORDS, last_record, read_metrics
from tinker_actors.gateway.keys import KeyStore
from tinker_actors.gateway.record_kinds import CheckpointRecord, ModelRecord
from tinker_actors.policies import Origin, SnapshotStore

API = "/dashboard/api"


@asynccontextmanager
async def asking(board: Dashboard, **headers: str) -> AsyncIterator[httpx.AsyncClient]:
    async with board.served() as url, httpx.AsyncClient(base_url=url + API, headers=headers, timeout=60) as client:
        yield client


async def test_another_tenants_job_looks_like_none_on_every_route(tmp_path: Path):
    with KeyStore(tmp_path / "keys.sqlite") as keys:
        _, theirs = keys.add("them")
        _, mine = keys.add("me")
        async with dashboard(tmp_path, admit=Admission(keys)) as board:
            job, run = await board.running(tenant="them")
            measure(run, 1, 2)
            play(run, episode("train-1-0-0", trajectory("x", turn("go", "1"))))
            at = f"/jobs/{job.id}"
            routes = [
                at,
                f"{at}/log",
                f"{at}/metrics",
                f"{at}/policies",
                f"{at}/episodes",
                f"{at}/episodes/train-1-0-0",
            ]
            async with asking(board, **{"X-API-Key": theirs}) as client:
                for route in routes:
                    assert (await client.get(route)).status_code == 200, route
            async with asking(board, **{"X-API-Key": mine}) as client:
                for route in (*routes, f"/live?run={job.id}"):
                    answer = await client.get(route)
                    assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), route
                    assert answer.json() == (await client.get(route.replace(job.id, "job-0"))).json() | {
                        key: answer.json()[key] for key in ("detail", "error")
                    }
                for action in ("cancel", "resume"):
                    assert (await client.post(f"{at}/{action}")).status_code == 404
                assert (await client.delete(at)).status_code == 404
                assert (await client.get("/jobs")).json()["jobs"] == []
                assert sum((await client.get("/jobs")).json()["counts"].values()) == 0
                assert (await client.get("/mesh")).json() == []
                assert (await client.get("/health")).status_code == 403
                assert (await client.get("/live?health=true")).status_code == 403
            async with asking(board) as client:
                for route in (*routes, "/jobs", "/about", "/mesh", "/health", "/policies", "/live"):
                    assert (await client.get(route)).status_code == 401, route
            assert (await board.scheduler.job(job.id)).ended is None


async def test_a_key_that_may_only_look_ends_no_job(tmp_path: Path):
    with KeyStore(tmp_path / "keys.sqlite") as keys:
        _, looking = keys.add("me", scopes=["read"])
        async with dashboard(tmp_path, admit=Admission(keys)) as board:
            job, _ = await board.running(tenant="me")
            async with asking(board, **{"X-API-Key": looking}) as client:
                assert (await client.get(f"/jobs/{job.id}")).json()["can_cancel"]
                assert not (await client.get("/about")).json()["may_end_jobs"]
                assert (await client.post(f"/jobs/{job.id}/cancel")).status_code == 403


async def test_the_page_runs_only_its_own_files_and_nothing_else_is_served(tmp_path: Path):
    async with dashboard(tmp_path) as board, board.served() as url, httpx.AsyncClient(base_url=url) as client:
        page = await client.get("/")
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert "<script>" not in page.text
        assert "http:" not in page.text.replace("http://www.w3.org", "")
        tag = page.headers["etag"]
        assert (await client.get("/", headers={"If-None-Match": tag})).status_code == 304
        for name in ("../page.py", "..%2fpage.py", "%2e%2e/page.py", "page.py", "none.js"):
            assert (await client.get(f"/dashboard/static/{name}")).status_code == 404, name


async def test_jobs_come_page_by_page(tmp_path: Path):
    async with dashboard(tmp_path, room=1) as board:
        jobs = [await board.submit(f"run-{number}") for number in range(5)]
        async with asking(board) as client:
            first = (await client.get("/jobs", params={"limit": 3})).json()
            assert [job["name"] for job in first["jobs"]] == ["run-4", "run-3", "run-2"]
            assert first["more"]
            rest = (await client.get("/jobs", params={"limit": 3, "before": first["jobs"][-1]["number"]})).json()
            assert [job["name"] for job in rest["jobs"]] == ["run-1", "run-0"]
            assert not rest["more"]
            queued = (await client.get("/jobs", params={"state": "queued", "text": "RUN-3"})).json()
            assert [job["id"] for job in queued["jobs"]] == [jobs[3].id]
            wrong = await client.get("/jobs", params={"state": "sleeping"})
            assert wrong.status_code == 422
            assert "'queued'" in wrong.json()["detail"]
            assert (await client.get("/jobs", params={"before": 2**63})).status_code == 422


async def test_a_stream_tells_what_happens_and_goes_on_where_it_was_cut(tmp_path: Path):
    async with dashboard(tmp_path) as board:
        job, run = await board.running()
        measure(run, 1, 3)
        async with asking(board) as client:
            async with client.stream("GET", "/live", params={"run": job.id, "cursor": "0", "progress": "true"}) as cut:
                events = told(cut)
                first = await following(events, "metrics")
                assert [record["step"] for record in first["records"]] == [1, 2, 3]
                assert first["reset"]
                other = await board.submit("other")
                while (moved := await following(events, "job"))["job"]["id"] != other.id:
                    pass
                assert moved["counts"]["running"] >= 1
            measure(run, 4, 5)
            params = {"run": job.id, "cursor": first["cursor"]}
            async with client.stream("GET", "/live", params=params) as again:
                events = told(again)
                missed = await following(events, "metrics")
                assert [record["step"] for record in missed["records"]] == [4, 5]
                assert not missed["reset"]


async def test_a_stream_ends_when_its_key_is_revoked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tinker_actors.gateway.dashboard.live.BEAT", 0.05)
    with KeyStore(tmp_path / "keys.sqlite") as keys:
        key, secret = keys.add("me")
        async with (
            dashboard(tmp_path, admit=Admission(keys)) as board,
            asking(board, **{"X-API-Key": secret}) as client,
            client.stream("GET", "/live") as stream,
        ):
            events = told(stream)
            await following(events, "hello")
            keys.revoke(key.id)
            async with asyncio.timeout(60):
                async for _ in events:
                    pass


def test_a_run_that_is_taken_up_earlier_is_read_anew(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "kind": "step"}\n{"step": 2, "kind": "step"}\n{"step": 3, "ki')
    reading = read_metrics(path)
    assert reading is not None
    assert [record["step"] for record in reading.records] == [1, 2]
    assert read_metrics(path, reading.cursor) is None
    assert last_record(path) == {"step": 2, "kind": "step"}
    new = tmp_path / "new"
    new.write_text('{"step": 1, "kind": "step"}\n' * 9)
    new.replace(path)
    anew = read_metrics(path, reading.cursor)
    assert anew is not None
    assert anew.reset
    assert len(anew.records) == 9
    for nonsense in ("1.2.3", "a.b", "9.-1", "."):
        again = read_metrics(path, nonsense)
        assert again is not None
        assert again.reset


def test_of_a_long_run_one_step_in_several_is_read_and_every_evaluation(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    with path.open("w") as file:
        for step in range(4 * MOST_RECORDS):
            file.write(json.dumps({"step": step, "kind": "step", "reward": 0.25}) + "\n")
            if step % 1000 == 1:
                file.write(json.dumps({"step": step, "kind": "evaluation", "reward": 0.5}) + "\n")
    reading = read_metrics(path)
    assert reading is not None
    assert MOST_RECORDS / 2 < len(reading.records) < 2 * MOST_RECORDS
    assert sum(record["kind"] == "evaluation" for record in reading.records) == 4 * MOST_RECORDS / 1000
    assert reading.every >= 3
    assert read_metrics(path, reading.cursor) is None


async def test_episodes_are_chosen_sorted_and_given_with_their_neighbours(tmp_path: Path):
    async with dashboard(tmp_path) as board:
        job, run = await board.running()
        for step, reward in ((1, 0.5), (2, -1.0), (3, 1.0)):
            frozen = trajectory("o", turn("no", "9", reward=-reward), policy="old", trainable=False)
            play(run, episode(f"train-{step}-0-0", trajectory("x", turn("go", "1", reward=reward)), frozen), step=step)
        play(run, episode("train-3-0-1", trajectory("x", turn("go", "1")), error="it broke"), step=3)
        with run.rollouts.open("a") as file:
            file.write('{"id": "cut')
        async with asking(board) as client:

            async def ids(**wanted: object) -> list[str]:
                answer = (await client.get(f"/jobs/{job.id}/episodes", params=wanted)).json()
                return [entry["id"].removeprefix("train-") for entry in answer["episodes"]]

            assert await ids() == ["3-0-1", "3-0-0", "2-0-0", "1-0-0"]
            assert await ids(order="best") == ["3-0-0", "1-0-0", "3-0-1", "2-0-0"]
            assert await ids(order="worst", limit=1) == ["2-0-0"]
            assert await ids(failed=True) == ["3-0-1"]
            assert await ids(seat="o", order="oldest", offset=1) == ["2-0-0", "3-0-0"]
            assert await ids(policy="old", step=2) == ["2-0-0"]
            one = (await client.get(f"/jobs/{job.id}/episodes/train-1-0-0", params={"order": "best"})).json()
            assert (one["previous"], one["next"], one["place"]) == ("train-3-0-0", "train-3-0-1", 2)
            assert [seat["seat"] for seat in one["seats"]] == ["x", "o"]
            other = (await client.get(f"/jobs/{job.id}/episodes/train-1-0-0", params={"at": 2})).json()
            assert "2 seats" in other["detail"]
            play(run, episode("train-4-0-0", trajectory("x", turn("go", "1"))), step=4)
            assert (await client.get(f"/jobs/{job.id}/episodes/train-9-9-9")).status_code == 404


async def test_nobody_waits_for_the_index_of_a_run_that_he_did_not_ask_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    reading, go_on = asyncio.Event(), threading.Event()
    loop, read = asyncio.get_running_loop(), episodes._entry

    def slowly(line: bytes, start: int) -> episodes.Entry | None:
        if b"long" in line:
            loop.call_soon_threadsafe(reading.set)
            assert go_on.wait(30)
        return read(line, start)

    monkeypatch.setattr(episodes, "_entry", slowly)
    async with dashboard(tmp_path) as board:
        runs = {name: await board.running(name) for name in ("long", "short")}
        for name, (_, run) in runs.items():
            play(run, episode(f"train-1-0-{name}", trajectory("x", turn("go", "1"))))
        async with asking(board) as client:
            routes = {name: f"/jobs/{job.id}/episodes" for name, (job, _) in runs.items()}
            waiting = asyncio.create_task(client.get(routes["long"]))
            try:
                await reading.wait()
                async with asyncio.timeout(60):
                    assert (await client.get(routes["short"])).json()["all"] == 1
                assert not waiting.done()
            finally:
                go_on.set()
            assert (await waiting).json()["all"] == 1


async def test_clients_policies_are_shown_with_what_each_grew_from_and_to_their_tenant_alone(tmp_path: Path):
    with KeyStore(tmp_path / "keys.sqlite") as keys:
        _, mine = keys.add("me")
        _, theirs = keys.add("them")
        async with dashboard(tmp_path, admit=Admission(keys)) as board:
            store, records = SnapshotStore(board.gateway.runtime.store), board.gateway.records
            first = store.publish("run:train:0", lambda _: None, Origin(step=1, base_model="m"))
            later = Origin(step=3, base_model="m", parent=first.handle)
            stored = (first, store.publish("run:train:0", lambda _: None, later))
            made: dict[str, Any] = {"tenant": "me", "base_model": "m", "rank": 8, "model_id": "run:train:0"}
            records.models.put(ModelRecord(session_id="run", optimizer="adamw", created_at=1.0, used_at=1.0, **made))
            for name, snapshot in zip(("first", "second"), stored, strict=True):
                path = f"tinker://run:train:0/sampler_weights/{name}"
                about: dict[str, Any] = {"kind": "sampler", "handle": snapshot.handle, "size": 4, "public": True}
                records.checkpoints.put(
                    CheckpointRecord(path=path, created_at=snapshot.created_at, expires_at=9e9, **about, **made)
                )
            async with asking(board, **{"X-API-Key": mine}) as client:
                (policy,) = (await client.get("/policies")).json()["policies"]
                first, second = policy["stored"]
                assert (first["step"], second["step"]) == (1, 3)
                assert second["parent"] == first["handle"] == "tinker://run:train:0/sampler_weights/first"
                assert (second["public"], second["served"], second["expires_at"]) == (True, False, 9e9)
                assert policy["training"]
            async with asking(board, **{"X-API-Key": theirs}) as client:
                assert (await client.get("/policies")).json() == {"policies": []}


async def told(response: httpx.Response) -> AsyncIterator[tuple[str, dict]]:
    """The events of a stream."""
    name = ""
    async for line in response.aiter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


async def following(events: AsyncIterator[tuple[str, dict]], wanted: str) -> dict:
    """The next event of a name."""
    async with asyncio.timeout(60):
        async for name, data in events:
            if name == wanted:
                return data
    raise AssertionError(f"the stream ended before {wanted}")
