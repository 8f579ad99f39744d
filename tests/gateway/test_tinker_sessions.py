"""The Tinker API's sessions and what comes before them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.gateway.gateways import TINY, gateway_at

from tinker_actors.gateway.futures import Answer
from tinker_actors.gateway.tinker import fetching


async def test_a_client_starts_lives_and_ends(tmp_path: Path):
    async with gateway_at(tmp_path) as (gateway, client):
        assert (await client.post("/api/v1/client/config", json={"sdk_version": "0.38.0"})).json()["proto_write_fwdbwd"]
        assert (await client.post("/api/v1/client/dynamic_config", json={"sdk_version": "0.38.0"})).status_code == 200
        body = {"tags": ["t"], "user_metadata": {"a": "b"}, "sdk_version": "0.38.0", "type": "create_session"}
        session = (await client.post("/api/v1/create_session", json=body)).json()["session_id"]
        before = gateway.records.sessions.get(session)
        assert (await client.post("/api/v1/session_heartbeat", json={"session_id": session})).status_code == 200
        after = gateway.records.sessions.get(session)
        assert before is not None
        assert after is not None
        assert after.seen_at > before.seen_at
        assert after.tags == ("t",)
        ended = await client.post(f"/api/v1/sessions/{session}/finish", json={"reason": {"type": "success"}})
        assert ended.status_code == 200
        late = await client.post("/api/v1/session_heartbeat", json={"session_id": session})
        assert (late.status_code, late.json()["detail"]) == (410, f"session {session!r} has ended: success")
        unknown = await client.post("/api/v1/session_heartbeat", json={"session_id": "x"})
        assert (unknown.status_code, unknown.json()["category"]) == (404, "user")


async def test_what_a_body_lacks_is_named(tmp_path: Path):
    async with gateway_at(tmp_path) as (_, client):
        refused = await client.post("/api/v1/session_heartbeat", json={})
        assert (refused.status_code, refused.json()["error"]) == (422, "session_id: Field required")


async def test_the_models_are_named_with_their_context(tmp_path: Path):
    async with gateway_at(tmp_path, TINY) as (_, client):
        found = (await client.get("/api/v1/get_server_capabilities")).json()["supported_models"]
        expected = {"model_name": "tiny/llama", "max_context_length": 512, "trainable": True, "sampleable": True}
        assert found == [expected]


async def test_an_answer_is_waited_for_fetched_twice_and_announced_if_it_is_large(tmp_path: Path, monkeypatch):
    async with gateway_at(tmp_path) as (gateway, client):
        future = gateway.futures.open("local", "forward_backward")
        asked = {"request_id": future.request_id}
        waiting = asyncio.create_task(client.post("/api/v1/retrieve_future", json=asked))
        answer = Answer(content=b"\x08\x01", media_type="application/x-protobuf", plain=lambda: {"one": 1})
        gateway.futures.settle(future, answer)
        assert (await waiting).json() == {"one": 1}
        read = await client.post("/api/v1/retrieve_future", json=asked, headers={"Accept": "application/x-protobuf"})
        assert (read.content, read.headers["content-type"]) == (b"\x08\x01", "application/x-protobuf")
        monkeypatch.setattr(fetching, "INLINE", 1)
        sized = await client.post("/api/v1/retrieve_future", json={**asked, "allow_metadata_only": True})
        assert (sized.json()["status"], sized.json()["response_payload_size"]) == ("complete_metadata", 2)


async def test_an_answer_that_is_not_there_yet_is_to_be_asked_for_again(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(fetching, "HELD", 0.01)
    async with gateway_at(tmp_path) as (gateway, client):
        future = gateway.futures.open("local", "forward_backward")
        again = await client.post("/api/v1/retrieve_future", json={"request_id": future.request_id})
        assert (again.status_code, again.json()["type"], again.json()["queue_state"]) == (408, "try_again", "active")
        gone = await client.post("/api/v1/retrieve_future", json={"request_id": "x"})
        assert gone.status_code == 410
