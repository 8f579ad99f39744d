"""What is stored and what is on record agree again after a kill at any moment; what others are storing stays."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.killing import killed_before_each_step

from tinker_actors.actors.errors import ActorDiedError
from tinker_actors.errors import PolicyError
from tinker_actors.gateway.checkpoints import Checkpoints
from tinker_actors.gateway.record_kinds import (
    CheckpointRecord,
    DiscardRecord,
    ModelRecord,
    SamplerKind,
    SamplerRecord,
    SessionRecord,
)
from tinker_actors.gateway.records import Records
from tinker_actors.gateway.runtime import Runtime
from tinker_actors.gateway.serving import Serving
from tinker_actors.policies import Handle, Origin, SnapshotStore

MODEL = "s:train:0"
ORIGIN = Origin(step=1, base_model="m")
ABOUT: dict[str, Any] = {"tenant": "local", "base_model": "m", "created_at": 1.0}
OF_MODEL: dict[str, Any] = {**ABOUT, "model_id": MODEL}
LIFE: dict[str, Any] = {"tenant": "local", "created_at": 1.0, "seen_at": 1.0}


class Kept:
    """The records and the store of a gateway that has no engines."""

    def __init__(self, root: Path, records: Records) -> None:
        runtime = Runtime(root, [])
        self.records, self.store = records, SnapshotStore(runtime.store)
        self.checkpoints = Checkpoints(runtime, records, Serving(runtime))

    def write(self, folder: Path) -> None:
        (folder / "weights").write_text("w")

    def weights(self) -> set[str]:
        """The handles of all that is stored."""
        return set(self.store.handles(MODEL) | self.store.handles(MODEL, "weights"))

    def on_record(self) -> set[str]:
        """The handles of all that is on record."""
        found = {record.handle for record in self.records.checkpoints.where()}
        found |= {sampler.handle for sampler in self.records.samplers.where() if sampler.handle}
        return found | {model.inflight for model in self.records.models.where() if model.inflight}

    def half(self) -> list[Path]:
        """What is half stored, or half deleted."""
        return list(Path(self.store.root).rglob(".[dg]*-*"))

    async def save(self, name: str) -> str:
        """A training checkpoint."""
        async with self.checkpoints.storing(MODEL, "m", name=name) as handle:
            self.store.checkpoint(MODEL, Handle.parse(handle).name, self.write, ORIGIN)
            await self.checkpoints.put(
                CheckpointRecord(
                    **OF_MODEL, path=f"tinker://{MODEL}/weights/{name}", kind="training", handle=handle, rank=2
                )
            )
        return handle

    async def save_for_sampler(self, kind: SamplerKind, sampler_id: str) -> str:
        """Weights without a name."""
        record = SamplerRecord(**OF_MODEL, sampler_id=sampler_id, session_id="s", kind=kind)
        async with self.checkpoints.storing(MODEL, "m") as handle:
            self.store.publish(MODEL, self.write, ORIGIN, handle=handle)
            await self.checkpoints.put_sampler(record, handle)
        return handle


@asynccontextmanager
async def kept(root: Path) -> AsyncIterator[Kept]:
    with closing(Records(root / "gateway.sqlite")) as records:
        yield Kept(root, records)


def running(work: Callable[[Kept], Any], root: Path) -> None:
    async def run() -> None:
        async with kept(root) as found:
            await work(found)

    asyncio.run(run())


async def _begin(found: Kept) -> None:
    found.records.sessions.put(SessionRecord(**LIFE, session_id="s"))
    found.records.models.put(ModelRecord(**OF_MODEL, session_id="s", rank=2, optimizer="adamw", used_at=1.0))
    await found.save("a")
    await found.save_for_sampler("inflight", "s:sample:0")
    await found.save_for_sampler("snapshot", "s:sample:1")


async def _go_on_and_end(found: Kept) -> None:
    await found.save("a")  # each in the place of one before
    await found.save_for_sampler("inflight", "s:sample:0")
    await found.save_for_sampler("snapshot", "s:sample:1")
    record = found.records.checkpoints.get(f"tinker://{MODEL}/weights/a")
    assert record is not None
    await found.checkpoints.delete(record)
    found.records.sessions.update("s", ended_at=2.0)
    await found.checkpoints.end_session("s")


async def agrees(found: Kept) -> None:
    """Wait until all that is stored is on record, nothing is half stored, and check that it is whole."""
    async with asyncio.timeout(60), found.checkpoints.expiring():
        while found.weights() != found.on_record() or found.records.discards.count() or found.half():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    for handle in found.on_record():
        found.store.verify(found.store.get(handle))


@pytest.mark.slow
def test_after_a_kill_at_any_moment_all_that_is_stored_is_on_record(tmp_path: Path):
    steps = [partial(running, each) for each in (_begin, _go_on_and_end, agrees)]
    assert killed_before_each_step(tmp_path, *steps) > 100


async def test_what_another_process_is_storing_stays(tmp_path: Path):
    async with kept(tmp_path) as first, first.checkpoints.storing(MODEL, "m") as handle:
        first.store.publish(MODEL, first.write, ORIGIN, handle=handle)
        async with kept(tmp_path) as second:
            left = await second.save("a")
            second.records.checkpoints.delete(f"tinker://{MODEL}/weights/a")
            second.records.discards.put(DiscardRecord(handle=left, base_model="m"))
            async with second.checkpoints.expiring():
                while left in second.weights():  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
            assert second.weights() == {handle}
        await first.checkpoints.put_sampler(
            SamplerRecord(**OF_MODEL, sampler_id="s:sample:0", session_id="s", kind="snapshot"), handle
        )
    async with kept(tmp_path) as third:
        await agrees(third)
        assert third.weights() == {handle}


@pytest.mark.parametrize("error", [PolicyError("no"), ActorDiedError("gone"), asyncio.CancelledError()])
async def test_what_could_not_be_put_on_record_goes_at_once_or_if_it_may_be_stored_yet_at_the_next_start(
    tmp_path: Path, error: BaseException
):
    async with kept(tmp_path) as found:
        stored = partial(found.store.checkpoint, MODEL, write=found.write, origin=ORIGIN)
        names: list[str] = []

        async def fail() -> None:
            async with found.checkpoints.storing(MODEL, "m", name="a") as handle:
                names.append(Handle.parse(handle).name)
                if isinstance(error, PolicyError):
                    stored(name=names[0])
                raise error

        with pytest.raises(type(error)):
            await fail()
        assert found.weights() == set()
        if not isinstance(error, PolicyError):  # the trainer has gone on
            stored(name=names[0])
            assert len(found.weights()) == 1
    async with kept(tmp_path) as again:
        await agrees(again)
        assert again.weights() == set()


async def test_a_copy_is_on_record_with_its_run_or_neither_is(tmp_path: Path):
    def gone(*_: object) -> None:
        raise OSError("the disk is full")

    async with kept(tmp_path) as found:
        model = ModelRecord(**OF_MODEL, session_id="s", rank=2, optimizer="adamw", used_at=time.time())
        record = CheckpointRecord(**OF_MODEL, path=f"tinker://{MODEL}/weights/a", kind="training", handle="h", rank=2)
        session = SessionRecord(**LIFE, session_id="s")
        put, found.records.checkpoints.put = found.records.checkpoints.put, gone  # type: ignore[method-assign]
        with pytest.raises(OSError, match="full"):
            found.checkpoints.put_copy(record, model, session)
        assert (found.records.models.get(MODEL), found.records.sessions.get("s")) == (None, None)
        found.records.checkpoints.put = put  # type: ignore[method-assign]
        found.checkpoints.put_copy(record, model, session)
        assert found.records.checkpoints.get(record.path) == record
        assert found.records.sessions.get("s") == session
