"""Named checkpoints: kept while they are wanted; gone with their files once they are deleted or their time is over."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from tinker_actors.errors import ActorError, PolicyError, UnknownPolicyError
from tinker_actors.gateway.record_kinds import (
    CheckpointRecord,
    DiscardRecord,
    ModelRecord,
    SamplerRecord,
    SessionRecord,
)
from tinker_actors.gateway.records import LIVING, Records
from tinker_actors.gateway.runtime import Runtime
from tinker_actors.gateway.serving import Serving
from tinker_actors.gateway.tables import Table
from tinker_actors.policies import Handle, SnapshotStore

logger = logging.getLogger(__name__)

_AGAIN = 60.0  # seconds after which deleting is tried again that failed
_ENDED = "session_id IN (SELECT session_id FROM sessions WHERE ended_at IS NOT NULL)"


class Checkpoints:
    """Keeps the records of checkpoints and the store's files together.

    A checkpoint can't be found from the moment at which it expires or its deletion begins. What files are to be deleted
    is on record until they are gone, and so is what is being stored until it has a record of its own: what is pinned,
    lies in a store that can't be reached, or was left by a service that was killed is tried again. Several checkpoints
    may have the same files, which go with the last.

    Args:
        runtime: Has the store.
        records: Has the records.
        serving: Is told of snapshots that are gone.

    Attributes:
        copies: Made for which requests.
    """

    def __init__(self, runtime: Runtime, records: Records, serving: Serving) -> None:
        self._records, self._serving = records, serving
        self._served = {model.name for model in runtime.models}
        self._store = SnapshotStore(runtime.store)
        self._changed = asyncio.Event()
        self._deleting = asyncio.Lock()
        self._swept = False
        self.copies = Copies()

    @asynccontextmanager
    async def storing(self, policy: str, base_model: str, *, name: str | None = None) -> AsyncIterator[str]:
        """A handle under which something is stored within the block and put on record, by `put` or `put_sampler`.

        What isn't on record when the block ends is deleted. Where the service is killed within it, or the trainer can't
        tell how far it got, that is done when the service starts again.

        Args:
            policy: Id of the policy.
            base_model: Name under which its base model is served.
            name: What its training checkpoint is called by; None for a snapshot.
        """
        if name is None:
            handle = await asyncio.to_thread(self._store.reserve, policy)
        else:  # unlike all before it
            handle = str(Handle(policy_id=policy, kind="weights", name=f"{name[:100]}.{secrets.token_hex(4)}"))
        self._records.discards.put(DiscardRecord(handle=handle, base_model=base_model, storing=True))
        try:
            yield handle
        except (ActorError, asyncio.CancelledError):  # it may be stored yet
            raise
        except BaseException:  # whatever it was, nobody will ask for what was stored
            await self._give_up(handle, base_model)
            raise
        await self._give_up(handle, base_model)

    async def _give_up(self, handle: str, base_model: str) -> None:
        if self._records.discards.get(handle) is not None:  # it isn't on record
            await self.discard(handle, base_model)

    async def put(self, record: CheckpointRecord) -> None:
        """Put a checkpoint on record, in the place of one of the same path, whose files go unless another has them."""
        with self._records.together():
            before = self._records.checkpoints.get(record.path)
            self._records.checkpoints.put(record)
            self._records.discards.delete(record.handle)
            replaced = before is not None and before.handle != record.handle
            if before is not None and replaced:
                self._note(before.handle, before.base_model)
        self._changed.set()
        if before is not None and replaced:
            await self._remove(before.handle, before.base_model)

    def put_copy(self, record: CheckpointRecord, model: ModelRecord, session: SessionRecord | None) -> None:
        """Put a copy of a checkpoint on record, with the training run and the session that were made for it."""
        with self._records.together():
            if session is not None:
                self._records.sessions.put(session)
            self._records.models.put(model)
            self._records.checkpoints.put(record)
        self._changed.set()

    async def put_sampler(self, record: SamplerRecord, handle: str) -> None:
        """Put weights on record that were saved without a name, and the sampling session that they were saved for.

        Args:
            record: The session: one of kind `inflight` samples from its model's newest from now on.
            handle: The weights'. What they come in the place of is deleted.
        """
        models, samplers = self._records.models, self._records.samplers
        with self._records.together():
            known = samplers.get(record.sampler_id)
            before = [known.handle if known is not None and known.path is None else None]
            if record.kind == "inflight":
                model = models.get(record.model_id or "")
                before.append(None if model is None else model.inflight)
                models.update(record.model_id or "", inflight=handle)
            samplers.put(record if record.kind == "inflight" else replace(record, handle=handle))
            self._records.discards.delete(handle)
            gone = [old for old in before if old]
            for old in gone:
                self._note(old, record.base_model)
        for old in gone:
            await self._remove(old, record.base_model)

    def set_expiry(self, path: str, expires_at: float | None) -> None:
        """Say when a checkpoint expires; None for never."""
        self._records.checkpoints.update(path, expires_at=expires_at)
        self._changed.set()

    async def delete(self, record: CheckpointRecord) -> None:
        """Delete a checkpoint, and its files if no other has them; what took its place meanwhile stays."""
        with self._records.together():
            self._note(record.handle, record.base_model)
            present = self._records.checkpoints.get(record.path)
            if present is not None and present.handle == record.handle:
                self._records.checkpoints.delete(record.path)
        await self._remove(record.handle, record.base_model)

    async def discard(self, handle: str, base_model: str) -> None:
        """Delete a snapshot's or checkpoint's files, unless a checkpoint that hasn't expired has them.

        Files that can't be deleted now are deleted later.
        """
        self._note(handle, base_model)
        await self._remove(handle, base_model)

    async def end_session(self, session_id: str) -> None:
        """Delete weights that were saved for a session's samplers alone; the session has ended."""
        await self._discard_unnamed("session_id = ?", session_id)

    def _note(self, handle: str, base_model: str) -> None:
        self._records.discards.put(DiscardRecord(handle=handle, base_model=base_model))

    async def _remove(self, handle: str, base_model: str) -> None:
        """Delete files that are noted, and the note unless they can't be deleted now."""
        async with self._deleting:  # what expires while it is being deleted is deleted by two
            if self._records.checkpoints.count(f"handle = ? AND {LIVING}", handle, time.time()):
                self._records.discards.delete(handle)
                return
            try:
                await asyncio.to_thread(self._store.delete, handle)
            except UnknownPolicyError:
                self._records.discards.delete(handle)  # a deletion before this one had got so far
            except (PolicyError, OSError) as error:  # pinned by an operator, or the store can't be reached: they stay
                logger.warning("the files of %s stay; deleting them is tried again: %s", handle, error)
            else:
                self._records.discards.delete(handle)
        if base_model in self._served:
            await self._serving.forget(base_model, handle)

    async def _discard_unnamed(self, condition: str, *values: str) -> None:
        for sampler in self._records.samplers.where(f"{condition} AND path IS NULL AND handle > ''", *values):
            await self._drop(self._records.samplers, sampler.sampler_id, "handle")
        for model in self._records.models.where(f"{condition} AND inflight > ''", *values):
            await self._drop(self._records.models, model.model_id, "inflight")

    async def _drop(self, table: Table[SamplerRecord] | Table[ModelRecord], key: str, column: str) -> None:
        """Delete the files that a column names by now."""
        with self._records.together():
            record = table.get(key)
            handle: str | None = None if record is None else getattr(record, column)
            if record is None or not handle:
                return
            self._note(handle, record.base_model)
            table.update(key, **{column: None})
        await self._remove(handle, record.base_model)

    @asynccontextmanager
    async def expiring(self) -> AsyncIterator[None]:
        """Delete what expires, when it does, and what was left before, as long as the block lasts."""
        works = (self._expire_next, self._remove_left)
        tasks = [asyncio.create_task(_keep_at(work), name=f"checkpoints: {work.__name__}") for work in works]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _expire_next(self) -> None:
        """Delete what expires next, or wait until it does or another one is first."""
        self._changed.clear()
        found = self._records.checkpoints.where("expires_at IS NOT NULL", order="expires_at", limit=1)
        left = found[0].expires_at - time.time() if found and found[0].expires_at is not None else None
        if left is not None and left <= 0:
            await self.delete(found[0])
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(left):
                await self._changed.wait()

    async def _remove_left(self) -> None:
        """Delete what is noted, and what is left of sessions that ended as the service was killed; then wait."""
        if not self._swept:
            await asyncio.to_thread(self._store.sweep)
            self._swept = True
        await self._discard_unnamed(_ENDED)
        for left in self._records.discards.where("NOT storing"):
            await self._remove(left.handle, left.base_model)
        await asyncio.sleep(_AGAIN)


async def _keep_at(work: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await work()
        except Exception:  # the boundary of a task that nobody waits for: a full disk, say, doesn't end it
            logger.exception("checkpoints that are over can't be deleted; it is tried again in %g s", _AGAIN)
            await asyncio.sleep(_AGAIN)


class Copies:
    """Which copies were made for which requests, so that one that is sent again makes no second one."""

    def __init__(self, most: int = 1024) -> None:
        self._most = most
        self._paths: OrderedDict[tuple[str, str], str] = OrderedDict()

    def get(self, request: tuple[str, str]) -> str | None:
        """The copy that a tenant's request made."""
        return self._paths.get(request)

    def put(self, request: tuple[str, str], path: str) -> None:
        """Remember it."""
        self._paths[request] = path
        if len(self._paths) > self._most:
            self._paths.popitem(last=False)
