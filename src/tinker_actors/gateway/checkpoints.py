"""Named checkpoints: kept while they are wanted; gone with their files once they are deleted or their time is over."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tinker_actors.errors import PolicyError, UnknownPolicyError
from tinker_actors.gateway.record_kinds import CheckpointRecord
from tinker_actors.gateway.records import LIVING, Records
from tinker_actors.gateway.runtime import Runtime
from tinker_actors.gateway.serving import Serving
from tinker_actors.policies import SnapshotStore

logger = logging.getLogger(__name__)

_AGAIN = 60.0  # seconds after which deleting is tried again that failed
_OVER = 1.0
"""When something expires that is being deleted: long ago, so that nobody finds it any more."""


class Checkpoints:
    """Keeps the records of checkpoints and the store's files together.

    A checkpoint can't be found from the moment at which it expires or its deletion begins; a service that is killed
    meanwhile deletes the rest when it is started again. Its record stays as long as its files can't be deleted, because
    they are pinned or the store can't be reached, and that is tried again. Several checkpoints may have the same files,
    which go with the last.

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
        self._again: dict[str, float] = {}  # by path, when deleting is tried again
        self.copies = Copies()

    def put(self, record: CheckpointRecord) -> None:
        """Remember a checkpoint, in the place of one of the same path."""
        self._records.checkpoints.put(record)
        self._again.pop(record.path, None)
        self._changed.set()

    def set_expiry(self, path: str, expires_at: float | None) -> None:
        """Say when a checkpoint expires; None for never."""
        self._records.checkpoints.update(path, expires_at=expires_at)
        self._again.pop(path, None)
        self._changed.set()

    async def delete(self, record: CheckpointRecord) -> None:
        """Delete a checkpoint, and its files if no other has them; what took its place meanwhile stays.

        Files that can't be deleted now are deleted later; the checkpoint can't be found all the same.
        """
        self._records.checkpoints.update(record.path, expires_at=_OVER)
        if not await self.discard(record.handle, record.base_model):
            self._again[record.path] = time.time() + _AGAIN
            self._changed.set()
            return
        self._again.pop(record.path, None)
        left = self._records.checkpoints.get(record.path)
        if left is not None and left.handle == record.handle and left.expires_at == _OVER:
            self._records.checkpoints.delete(record.path)

    async def discard(self, handle: str, base_model: str) -> bool:
        """Delete a snapshot's or checkpoint's files, unless one that hasn't expired has them.

        Returns:
            False if they can't be deleted now.
        """
        gone = True
        async with self._deleting:  # what expires while it is being deleted is deleted by two
            if self._records.checkpoints.count(f"handle = ? AND {LIVING}", handle, time.time()):
                return True
            try:
                await asyncio.to_thread(self._store.delete, handle)
            except UnknownPolicyError:
                pass  # a deletion before this one, or one that was cut short, had got so far
            except (PolicyError, OSError) as error:  # pinned by an operator, or the store can't be reached: they stay
                logger.warning("the files of %s stay: %s", handle, error)
                gone = False
        if base_model in self._served:
            await self._serving.forget(base_model, handle)
        return gone

    async def end_session(self, session_id: str) -> None:
        """Delete weights that were saved for a session's samplers alone; the session has ended."""
        for sampler in self._records.samplers.where("session_id = ? AND path IS NULL AND handle != ''", session_id):
            self._records.samplers.update(sampler.sampler_id, handle=None)
            await self.discard(sampler.handle or "", sampler.base_model)
        for model in self._records.models.where("session_id = ? AND inflight != ''", session_id):
            self._records.models.update(model.model_id, inflight=None)
            await self.discard(model.inflight or "", model.base_model)

    @asynccontextmanager
    async def expiring(self) -> AsyncIterator[None]:
        """Delete what expires, when it does, as long as the block lasts."""
        task = asyncio.create_task(self._expire(), name="expiry of checkpoints")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _expire(self) -> None:
        while True:
            try:
                await self._expire_next()
            except Exception:  # the boundary of a task that nobody waits for: a full disk, say, doesn't end it
                logger.exception("checkpoints that have expired can't be deleted; it is tried again in %g s", _AGAIN)
                await asyncio.sleep(_AGAIN)

    async def _expire_next(self) -> None:
        """Delete what expires next, or wait until it does or another one is first."""
        self._changed.clear()
        most = len(self._again) + 1  # one of so many at least did not fail before
        found = self._records.checkpoints.where("expires_at IS NOT NULL", order="expires_at", limit=most)
        due = {record.path: max(record.expires_at or 0.0, self._again.get(record.path, 0.0)) for record in found}
        first = min(found, key=lambda record: due[record.path], default=None)
        left = None if first is None else due[first.path] - time.time()
        if first is not None and left is not None and left <= 0:
            await self.delete(first)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(left):
                await self._changed.wait()


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
