"""The Tinker API's checkpoints, and what else it tells through REST, at the wire."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from safetensors.torch import load
from tests.gateway.gateways import TINY
from tests.gateway.tinker_wire import Wire, got, published, route, stored, wired

from tinker_actors.errors import ConfigError
from tinker_actors.gateway.record_kinds import SessionRecord
from tinker_actors.gateway.tinker.encryption import Encryption

OTHER = {"Tenant": "other"}


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Wire]:
    async with wired(tmp_path) as client:
        yield client


async def test_checkpoints_are_listed_by_tenant_and_run_the_newest_first(client: Wire):
    first = await published(client, size=5, user_metadata={"a": "b"})
    second = await published(client, kind="training")
    await published(client, tenant="other")
    listed = await got(client, "checkpoints?limit=1")
    assert [entry["tinker_path"] for entry in listed["checkpoints"]] == [second.path]
    assert listed["cursor"] == {"offset": 0, "limit": 1, "total_count": 2}
    (entry,) = (await got(client, f"training_runs/{first.model_id}/checkpoints"))["checkpoints"]
    assert entry["checkpoint_id"] == "sampler_weights/named"
    assert (entry["checkpoint_type"], entry["size_bytes"], entry["public"]) == ("sampler", 5, False)
    assert entry["user_metadata"] == {"a": "b"}
    assert datetime.fromisoformat(entry["time"]).timestamp() == pytest.approx(first.created_at, abs=1e-3)


async def test_a_deleted_checkpoint_is_gone_with_its_files_and_from_samplers(client: Wire):
    record = await published(client)
    sampler = await client.sampler(model_path=record.path)
    await client.sample(sampler, sampling_params={"max_tokens": 1})
    assert client.gateway.serving.held(TINY.name) == (record.handle,)
    assert (await client.http.delete(route(record), headers=OTHER)).status_code == 404
    assert (await client.http.delete(route(record))).status_code == 204
    assert not stored(client, record)
    assert client.gateway.serving.held(TINY.name) == ()
    assert (await client.http.delete(route(record))).status_code == 404
    assert (await got(client, "checkpoints"))["checkpoints"] == []


async def test_others_read_a_checkpoint_from_its_publication_to_its_end_and_never_change_it(client: Wire):
    record = await published(client)
    asked = {"tinker_path": record.path}
    for _ in range(2):  # the second time nothing changes
        assert (await client.http.post(route(record, "/publish"))).status_code == 204
    assert (await client.http.post("/api/v1/weights_info", json=asked, headers=OTHER)).json()["lora_rank"] == 2
    run = f"training_runs/{record.model_id}"
    assert (await client.http.get(f"/api/v1/{run}", headers=OTHER)).status_code == 404
    assert (await got(client, f"{run}?access_scope=accessible", headers=OTHER))["model_owner"] == "local"
    assert len((await got(client, f"{run}/checkpoints", headers=OTHER))["checkpoints"]) == 1
    found = await got(client, "training_runs?access_scope=accessible", headers=OTHER)
    assert [entry["training_run_id"] for entry in found["training_runs"]] == [record.model_id]
    for method, action in (("DELETE", ""), ("DELETE", "/publish"), ("POST", "/publish"), ("PUT", "/ttl")):
        body = {"json": {"ttl_seconds": None}} if method == "PUT" else {}
        refused = await client.http.request(method, route(record, action), headers=OTHER, **body)
        assert refused.status_code == 404, (method, action)
    assert (await client.http.delete(route(record, "/publish"))).status_code == 204
    assert (await client.http.post("/api/v1/weights_info", json=asked, headers=OTHER)).status_code == 404


async def test_a_copy_into_a_slot_of_a_session_is_made_once(client: Wire):
    record = await published(client)
    slot = {"session_id": client.session, "model_seq_id": 40, "source_path": record.path, "ttl_seconds": 7200}
    one, two = [(await client.post("copy_weights", **slot)).json() for _ in "ab"]
    assert one == two == {"tinker_path": f"tinker://{client.session}:train:40/sampler_weights/named"}
    taken = await client.post("copy_weights", **slot | {"model_seq_id": client.models})
    assert (taken.status_code, "another training run" in taken.json()["detail"]) == (400, True)
    nowhere = await client.post("copy_weights", source_path=record.path)
    assert "destination_project_id" in nowhere.json()["detail"]
    foreign = await client.http.post("/api/v1/copy_weights", json=slot, headers=OTHER)
    assert foreign.status_code == 404


async def test_weights_to_take_elsewhere_are_fetched_file_by_file_without_a_key(client: Wire):
    record = await published(client, kind="external")
    told = await got(client, route(record, "/external_weights_urls").removeprefix("/api/v1/"))
    assert {"adapter_config.json", "adapter_model.safetensors"} <= told["urls"].keys()
    transport = client.http._transport
    async with httpx.AsyncClient(transport=transport, base_url="http://anywhere") as stranger:
        weights = await stranger.get(told["urls"]["adapter_model.safetensors"])
        assert weights.status_code == 200
        assert all(tensor.shape[0] == 2 for name, tensor in load(weights.content).items() if "lora_A" in name)
        url = told["urls"]["adapter_config.json"]
        head, token = url.rsplit("/", 1)
        for altered in (token[:-1] + ("A" if token[-1] != "A" else "B"), "x", "..%2f..%2fgateway.sqlite", "=", "é"):
            assert (await stranger.get(f"{head}/{altered}")).status_code == 404
        for opens, expires in (
            ({"path": record.path, "file": "adapter_config.json"}, time.time() - 1),
            ({"path": "tinker://x/weights/y", "file": "adapter_config.json"}, time.time() + 9),
        ):
            old = client.gateway.signer.sign(opens, expires_at=expires)
            assert (await stranger.get(f"{head}/{old}")).status_code == 404
        await client.http.delete(route(record))
        assert (await stranger.get(url)).status_code == 404
    sampler = await published(client)
    refused = await client.http.get(route(sampler, "/external_weights_urls"))
    assert "save_weights_external" in refused.json()["detail"]


async def test_an_address_opens_what_it_was_signed_for_as_long_as_its_holder_may_read_it(client: Wire):
    record = await published(client, kind="external")
    routes = route(record, "/external_weights_urls").removeprefix("/api/v1/")
    await client.http.post(route(record, "/publish"))
    theirs = (await got(client, routes, headers=OTHER))["urls"]["adapter_config.json"]
    own = (await got(client, routes))["urls"]["adapter_config.json"]
    for url in (theirs, own):
        assert (await client.http.get(url)).status_code == 200
    await client.http.delete(route(record, "/publish"))
    assert [(await client.http.get(url)).status_code for url in (theirs, own)] == [404, 200]
    # other weights under the same name, private ones
    anew = replace(record, handle=(await published(client, kind="external")).handle)
    assert (await client.http.delete(route(record))).status_code == 204
    await client.gateway.checkpoints.put(anew)
    assert [(await client.http.get(url)).status_code for url in (theirs, own)] == [404, 404]
    assert (await client.http.get((await got(client, routes))["urls"]["adapter_config.json"])).status_code == 200


def test_without_the_package_that_encrypts_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pyrage", None)
    with pytest.raises(ConfigError, match=r"pip install 'tinker-actors\[age\]'"):
        Encryption(["age1x"])


async def test_training_runs_are_paged_and_told_with_their_last_checkpoints(client: Wire):
    first, second = await published(client), await published(client, kind="training")
    page = await got(client, "training_runs?limit=1&offset=1")
    assert page["cursor"] == {"offset": 1, "limit": 1, "total_count": 2}
    (run,) = page["training_runs"]
    assert (run["training_run_id"], run["base_model"], run["is_lora"], run["lora_rank"]) == (
        first.model_id,
        TINY.name,
        True,
        2,
    )
    assert run["last_checkpoint"] is None
    assert run["last_sampler_checkpoint"]["tinker_path"] == first.path
    assert (await got(client, f"training_runs/{second.model_id}"))["last_checkpoint"]["tinker_path"] == second.path
    assert (await client.http.get(f"/api/v1/training_runs/{first.model_id}", headers=OTHER)).status_code == 404
    for wrong in ("limit=0", "limit=1001", "offset=-1"):
        assert (await client.http.get(f"/api/v1/training_runs?{wrong}")).status_code == 422


async def test_sessions_are_listed_looked_at_sought_and_put_into_projects(client: Wire):
    record = await published(client, size=7)
    sampler = await client.sampler(base_model=TINY.name)
    assert (await got(client, f"sessions/{client.session}")) == {
        "training_run_ids": [record.model_id],
        "sampler_ids": [sampler],
        "user_metadata": None,
        "display_name": None,
    }
    named = (await client.post("create_session", display_name="Blue moon", user_metadata={"run": "7"})).json()
    assert (await got(client, "sessions?limit=1"))["sessions"] == [named["session_id"]]
    assert (await got(client, "sessions", headers=OTHER))["sessions"] == []
    put = await client.http.put(f"/api/v1/sessions/{client.session}/project", json={"project_id": "p"})
    assert put.status_code == 204
    sought = {
        "moon": {"display_name": "MOON blue"},
        "run": {"user_metadata": {"run": "7"}},
        "project": {"project_ids": ["p"]},
        "id": {"session_id": client.session, "display_name": "nothing"},
        "active": {"statuses": [{"type": "active"}]},
        "finished": {"statuses": [{"type": "client_finished"}]},
    }
    await client.post(f"sessions/{named['session_id']}/finish", reason={"type": "errored"}, detail="why")
    found = {name: (await client.post("sessions/search", **body)).json()["sessions"] for name, body in sought.items()}
    ids = {name: [entry["session_id"] for entry in entries] for name, entries in found.items()}
    new, old = [named["session_id"]], [client.session]
    assert ids == {"moon": new, "run": new, "project": old, "id": old, "active": old, "finished": new}
    assert found["finished"][0]["status"] == {
        "type": "client_finished",
        "reason": {"type": "errored"},
        "detail": "why",
    }
    assert (found["active"][0]["checkpoints_count"], found["active"][0]["checkpoint_storage_bytes"]) == (1, 7)
    for path in (f"sessions/{client.session}", f"sessions/{client.session}/trace_export"):
        assert (await client.http.get(f"/api/v1/{path}", headers=OTHER)).status_code == 404


async def test_a_search_is_paged_to_its_end_without_gaps(client: Wire):
    for number in range(7):
        session = SessionRecord(session_id=f"s{number}", tenant="local", created_at=number // 2, seen_at=0.0)
        client.gateway.records.sessions.put(session)
    found: list[str] = []
    cursor = None
    while True:
        page = (await client.post("sessions/search", limit=2, cursor=cursor)).json()
        found += [entry["session_id"] for entry in page["sessions"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert found == [client.session, "s6", "s4", "s5", "s2", "s3", "s0", "s1"]


async def test_a_sessions_timeline_is_fetched_by_its_address(client: Wire):
    record = await published(client)
    exported = await got(client, f"sessions/{client.session}/trace_export")
    assert exported["status"] == "ready"
    events = (await client.http.get(exported["url"])).json()["traceEvents"]
    assert {(event["cat"], event["name"]) for event in events} == {
        ("session", client.session),
        ("model", record.model_id),
        ("checkpoint", record.path),
    }


async def test_used_tokens_are_counted_by_hour_and_tenant(client: Wire):
    sampler = await client.sampler(base_model=TINY.name)
    for seq_id in range(2):
        params = {"max_tokens": 3, "stop": []}
        await client.sample(sampler, seq_id=seq_id, tokens=range(5, 45), num_samples=2, sampling_params=params)
    now = datetime.now(UTC)
    window = {
        "starting_on": (now - timedelta(hours=1)).isoformat(),
        "ending_before": (now + timedelta(hours=1)).isoformat(),
    }
    told = await got(client, "billing/usage/events", params=window)
    counts = {
        (e["event_info"]["type"], e["event_info"].get("cached")): e["event_info"]["token_count"] for e in told["data"]
    }
    assert counts[("sampling_sample", None)] == 12
    assert counts[("sampling_prefill", False)] + counts[("sampling_prefill", True)] == 80
    assert counts[("sampling_prefill", True)] >= 32
    assert all(event["session_id"] == client.session for event in told["data"])
    assert (await got(client, "billing/usage/events", params=window, headers=OTHER))["data"] == []
    long = {**window, "starting_on": (now - timedelta(days=15)).isoformat()}
    assert (await client.http.get("/api/v1/billing/usage/events", params=long)).status_code == 400


async def test_storage_and_what_happened_to_checkpoints_are_told_to_their_tenant(client: Wire):
    record = await published(client, size=2**30)
    (item,) = (await got(client, "billing/usage/checkpoints/current"))["data"]
    assert (item["checkpoint_count"], item["size_bytes"], item["size_gigabytes"]) == (1, 2**30, 1.0)
    await client.http.post(route(record, "/publish"))
    copy = {"source_path": record.path, "destination_project_id": "p"}
    await client.http.post("/api/v1/copy_weights", json=copy, headers=OTHER)
    await client.http.delete(route(record))
    entries = (await got(client, "audit"))["entries"]
    assert [entry["event"] for entry in entries] == ["checkpoint_publish", "checkpoint_copy", "checkpoint_delete"]
    assert entries[1]["event_details"]["by"] == "other"
    assert (await got(client, "audit", headers=OTHER))["entries"] == []
    for day in ("2020-01-01", "0001-01-01", "9999-12-31"):
        assert (await got(client, f"audit?day={day}"))["entries"] == []


async def test_a_key_is_told_whose_it_is_and_other_credentials_get_no_token(client: Wire):
    me = await got(client, "auth/apikey/me", headers=OTHER)
    assert (me["name"], me["note"]) == ("test", "other")
    assert (await client.http.delete("/api/v1/auth/apikey/me")).status_code == 403
    assert (await client.post("auth/token")).status_code == 400


async def test_ids_that_look_like_paths_name_nothing(client: Wire):
    for name in ("..%2f..%2fgateway.sqlite", "%2e%2e", "weights%2f..", "a%00b"):
        for path in (f"training_runs/{name}", f"samplers/{name}", f"training_runs/x/checkpoints/weights/{name}", name):
            method = "DELETE" if "checkpoints" in path else "GET"
            assert (await client.http.request(method, f"/api/v1/{path}")).status_code == 404
    for path in ("tinker://../../etc/passwd", "/etc/passwd", "tinker://a/weights/../../..", ""):
        assert (await client.post("weights_info", tinker_path=path)).status_code == 404
