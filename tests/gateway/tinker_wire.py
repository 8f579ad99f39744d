"""A client of the Tinker API that speaks HTTP by hand."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from tests.gateway.gateways import TINY, by_header, gateway_at
from tinker.proto import tinker_public_pb2 as wire

from tinker_actors.errors import UnknownPolicyError
from tinker_actors.gateway.gateway import Gateway
from tinker_actors.gateway.record_kinds import CheckpointKind, CheckpointRecord, ModelRecord
from tinker_actors.gateway.runtime import ServedModel
from tinker_actors.policies import PolicySpec, SnapshotStore

PROMPT = (5, 6, 7, 8)


@dataclass
class Wire:
    """A client that speaks HTTP by hand, with a session."""

    gateway: Gateway
    http: httpx.AsyncClient
    session: str = ""
    samplers: int = 0
    models: int = 0

    async def post(self, route: str, **body: Any) -> httpx.Response:
        return await self.http.post(f"/api/v1/{route}", json=body)

    async def sampler(self, **of: Any) -> str:
        self.samplers += 1
        made = await self.post(
            "create_sampling_session", session_id=self.session, sampling_session_seq_id=self.samplers, **of
        )
        assert made.status_code == 200, made.text
        return made.json()["sampling_session_id"]

    async def ask(self, sampler: str, seq_id: int = 0, tokens=PROMPT, **body: Any) -> httpx.Response:
        prompt = {"chunks": [{"type": "encoded_text", "tokens": list(tokens)}]}
        return await self.post("asample", **{"sampling_session_id": sampler, "seq_id": seq_id, "prompt": prompt} | body)

    async def fetch(self, request_id: str) -> Any:
        headers = {"Accept": "application/x-protobuf"}
        asked = {"request_id": request_id}
        while (read := await self.http.post("/api/v1/retrieve_future", json=asked, headers=headers)).status_code == 408:
            pass  # it takes longer, and is to be asked for again
        assert read.status_code == 200, read.text
        if read.headers["content-type"] == "application/json":
            return read.json()
        return wire.SampleResponse.FromString(read.content)

    async def sample(self, sampler: str, **body: Any) -> Any:
        promised = await self.ask(sampler, **body)
        assert promised.status_code == 200, promised.text
        return await self.fetch(promised.json()["request_id"])


@asynccontextmanager
async def wired(root: Path, *models: ServedModel, **options: Any) -> AsyncIterator[Wire]:
    """A gateway and a client with a session; the header `Tenant` says who asks."""
    async with gateway_at(root, *(models or (TINY,)), admit=by_header, **options) as (gateway, http):
        client = Wire(gateway, http)
        client.session = (await client.post("create_session")).json()["session_id"]
        yield client


async def published(
    client: Wire, *, tenant: str = "local", kind: CheckpointKind = "sampler", **fields: Any
) -> CheckpointRecord:
    """A checkpoint and its model, as training will have saved them; more fields are those of the record."""
    client.models += 1
    model_id = f"{client.session}:train:{client.models}"
    trainer = client.gateway.runtime.engines_of(TINY.name).trainer
    policy = await trainer.create(PolicySpec(base_model="tiny-llama", rank=2, name=model_id))
    handle = await trainer.save(policy, "n") if kind == "training" else (await trainer.publish(policy)).handle
    now = time.time()
    of_both: dict[str, Any] = {"tenant": tenant, "model_id": model_id, "base_model": TINY.name, "rank": 2}
    client.gateway.records.models.put(
        ModelRecord(**of_both, session_id=client.session, optimizer="adamw", created_at=now, used_at=now)
    )
    segment = {"training": "weights", "sampler": "sampler_weights", "external": "external_weights"}[kind]
    path = f"tinker://{model_id}/{segment}/named"
    record = CheckpointRecord(**{**of_both, "path": path, "kind": kind, "handle": handle, "created_at": now, **fields})
    await client.gateway.checkpoints.put(record)
    return record


def route(record: CheckpointRecord, action: str = "") -> str:
    kind, name = record.path.rsplit("/", 2)[1:]
    return f"/api/v1/training_runs/{record.model_id}/checkpoints/{kind}/{name}{action}"


async def got(client: Wire, path: str, **options: Any) -> Any:
    answer = await client.http.get(f"/api/v1/{path}", **options)
    assert answer.status_code == 200, answer.text
    return answer.json()


def stored(client: Wire, record: CheckpointRecord) -> bool:
    try:
        SnapshotStore(client.gateway.runtime.store).get(record.handle)
    except UnknownPolicyError:
        return False
    return True
