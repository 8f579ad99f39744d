"""When checkpoints go, and their files with them: by deletion, by expiry, with their session, and after failures."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sqlite3
import sys
import time
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from tests.gateway.gateways import TINY
from tests.gateway.tinker_wire import Wire, got, published, route, stored, wired

from tinker_actors.errors import UnknownPolicyError
from tinker_actors.gateway.record_kinds import SamplerKind
from tinker_actors.gateway.records import Records
from tinker_actors.policies import SnapshotStore

OTHER = {"Tenant": "other"}


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Wire]:
    async with wired(tmp_path) as client:
        yield client


Removals: TypeAlias = "asyncio.Queue[tuple[str, bool]]"


@pytest.fixture
async def removals(monkeypatch: pytest.MonkeyPatch) -> Removals:
    """What is deleted from the store from here on, and whether it is gone; what isn't is tried again at once."""
    monkeypatch.setattr("tinker_actors.gateway.checkpoints._AGAIN", 0.02)
    tried: Removals = asyncio.Queue()
    loop, delete = asyncio.get_running_loop(), SnapshotStore.delete

    def told(self: SnapshotStore, handle: str) -> None:
        gone = False
        try:
            delete(self, handle)
            gone = True
        except UnknownPolicyError:
            gone = True
            raise
        finally:
            loop.call_soon_threadsafe(tried.put_nowait, (handle, gone))

    monkeypatch.setattr(SnapshotStore, "delete", told)
    return tried


async def unnamed(client: Wire, kind: SamplerKind) -> str:
    """The handle of weights that were saved for a session's samplers alone."""
    record = await published(client)
    client.gateway.records.checkpoints.delete(record.path)
    if kind == "inflight":
        client.gateway.records.models.update(record.model_id, inflight=record.handle)
        return record.handle
    sampler = await client.sampler(base_model=TINY.name)
    client.gateway.records.samplers.update(sampler, kind="snapshot", handle=record.handle)
    return record.handle


def weights(client: Wire) -> list[Path]:
    return list(Path(client.gateway.runtime.store).rglob("adapter_model.safetensors"))


async def test_a_checkpoint_goes_when_its_time_is_over_and_not_before(removals: Removals, client: Wire):
    record, other = await published(client), await published(client)
    assert (await client.http.put(route(record, "/ttl"), json={"ttl_seconds": 3600})).status_code == 204
    expires = (await got(client, f"training_runs/{record.model_id}/checkpoints"))["checkpoints"][0]["expires_at"]
    assert datetime.fromisoformat(expires).timestamp() == pytest.approx(time.time() + 3600, abs=60)
    for wrong in (3599, 10**10):
        refused = await client.http.put(route(record, "/ttl"), json={"ttl_seconds": wrong})
        assert f"ttl_seconds is {wrong}" in refused.json()["detail"]
    assert (await client.http.put(route(record, "/ttl"), json={"ttl_seconds": None})).status_code == 204
    client.gateway.checkpoints.set_expiry(other.path, time.time() + 30)
    client.gateway.checkpoints.set_expiry(record.path, time.time() + 0.2)
    assert await removals.get() == (record.handle, True)
    assert not stored(client, record)
    assert stored(client, other)
    assert [entry["tinker_path"] for entry in (await got(client, "checkpoints"))["checkpoints"]] == [other.path]


async def test_what_expires_is_deleted_although_deleting_failed_before(
    removals: Removals, client: Wire, monkeypatch: pytest.MonkeyPatch
):
    delete = SnapshotStore.delete

    def failing_once(self: SnapshotStore, handle: str) -> None:
        monkeypatch.setattr(SnapshotStore, "delete", delete)
        raise sqlite3.OperationalError("database or disk is full")

    record = await published(client)
    monkeypatch.setattr(SnapshotStore, "delete", failing_once)
    client.gateway.checkpoints.set_expiry(record.path, time.time())
    assert await removals.get() == (record.handle, True)
    assert not stored(client, record)
    assert client.gateway.records.checkpoints.get(record.path) is None


@pytest.mark.parametrize("by", ["expiry", "client"])
async def test_what_is_pinned_can_not_be_found_any_more_and_goes_with_its_files_once_it_is_not(
    removals: Removals, client: Wire, by: str
):
    record, other = await published(client), await published(client)
    store = SnapshotStore(client.gateway.runtime.store)
    store.pin(record.handle)
    if by == "expiry":
        client.gateway.checkpoints.set_expiry(record.path, time.time())
    else:
        assert (await client.http.delete(route(record))).status_code == 204
    assert [await removals.get() for _ in range(2)] == [(record.handle, False)] * 2
    assert [entry["tinker_path"] for entry in (await got(client, "checkpoints"))["checkpoints"]] == [other.path]
    assert (await client.post("weights_info", tinker_path=record.path)).status_code == 404
    assert client.gateway.records.checkpoints.get(record.path) is None
    assert stored(client, record)
    client.gateway.checkpoints.set_expiry(other.path, time.time())
    while await removals.get() != (other.handle, True):  # one that stays holds up no other
        pass
    store.unpin(record.handle)
    while await removals.get() != (record.handle, True):
        pass
    assert not stored(client, record)


@pytest.mark.parametrize("kind", ["snapshot", "inflight"])
async def test_what_a_session_leaves_is_deleted_although_that_failed_when_it_ended(
    removals: Removals, client: Wire, monkeypatch: pytest.MonkeyPatch, kind: SamplerKind
):
    handle = await unnamed(client, kind)
    unlink = os.unlink

    def failing_once(path: str, **options: Any) -> None:
        if path == "adapter_model.safetensors":
            monkeypatch.setattr(os, "unlink", unlink)
            raise OSError(errno.EIO, "Input/output error")
        unlink(path, **options)

    monkeypatch.setattr(os, "unlink", failing_once)
    await client.post(f"sessions/{client.session}/finish", reason={"type": "success"})
    assert await removals.get() == (handle, False)
    assert await removals.get() == (handle, True)
    assert weights(client) == []


async def test_what_sessions_left_that_ended_as_the_service_was_killed_is_deleted_when_it_starts(
    tmp_path: Path, removals: Removals
):
    async with wired(tmp_path) as client:
        handles = {await unnamed(client, "snapshot"), await unnamed(client, "inflight")}
        client.gateway.records.sessions.update(client.session, ended_at=time.time())
    async with wired(tmp_path) as client:
        assert {await removals.get(), await removals.get()} == {(handle, True) for handle in handles}
        assert weights(client) == []


KILLED = """
import os, signal, sys
import tinker_actors as ta

with ta.ServiceClient.local("tiny-llama", root=sys.argv[1]) as service:
    model = service.create_lora_training_client("tiny-llama", rank=2).result()
    model.save_weights_and_get_sampling_client().result()
    unlink = os.unlink
    os.unlink = lambda path, **below: os.kill(os.getpid(), signal.SIGKILL) if below else unlink(path)
"""


async def test_what_a_process_was_killed_over_deleting_is_deleted_by_the_next(tmp_path: Path, removals: Removals):
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, str(tmp_path))
    assert await killed.wait() == -signal.SIGKILL
    async with wired(tmp_path) as client:
        assert (await removals.get())[1]
        assert weights(client) == []


async def test_what_expired_while_the_service_was_down_is_deleted_when_it_starts(tmp_path: Path, removals: Removals):
    async with wired(tmp_path) as client:
        record = await published(client)
    with closing(Records(client.gateway.runtime.root / "gateway.sqlite")) as records:
        records.checkpoints.update(record.path, expires_at=time.time() - 1)
    async with wired(tmp_path) as client:
        assert await removals.get() == (record.handle, True)
        assert not stored(client, record)


async def test_a_copy_shares_the_files_until_the_last_of_both_is_gone(client: Wire):
    record = await published(client, public=True)
    body = {"source_path": record.path, "destination_project_id": "archive"}
    keyed = {**OTHER, "X-Idempotency-Key": "k"}
    copies = [(await client.http.post("/api/v1/copy_weights", json=body, headers=keyed)).json() for _ in "ab"]
    assert copies[0] == copies[1]
    path = copies[0]["tinker_path"]
    assert path.endswith(":train:0/sampler_weights/named")
    (run,) = (await got(client, "training_runs?project_id=archive", headers=OTHER))["training_runs"]
    assert run["last_sampler_checkpoint"]["tinker_path"] == path
    assert (await client.http.delete(route(record))).status_code == 204
    assert stored(client, record)
    copy = client.gateway.records.checkpoints.get(path)
    assert copy is not None
    assert (copy.tenant, copy.public, copy.expires_at) == ("other", False, None)
    assert (await client.http.delete(route(copy), headers=OTHER)).status_code == 204
    assert not stored(client, record)


async def test_what_is_deleted_twice_at_once_is_gone_and_what_took_its_place_stays(client: Wire):
    record, other, newer = [await published(client) for _ in "abc"]
    checkpoints = client.gateway.checkpoints
    await asyncio.gather(*(checkpoints.delete(record) for _ in range(4)))
    assert not stored(client, record)
    deleting = asyncio.create_task(checkpoints.delete(other))
    await asyncio.sleep(0)  # it has begun
    newer = replace(newer, path=other.path)
    await checkpoints.put(newer)
    await deleting
    assert client.gateway.records.checkpoints.get(other.path) == newer
    assert not stored(client, other)
    assert stored(client, newer)
