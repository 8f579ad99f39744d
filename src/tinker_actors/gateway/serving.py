"""Which snapshots the gateway's samplers hold: loaded when somebody needs them, dropped when others need the room."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from tinker_actors.errors import ConfigError, TinkerActorsError, UnknownPolicyError
from tinker_actors.gateway.runtime import Engines, Runtime
from tinker_actors.policies import PolicySpec, SnapshotStore


class Serving:
    """Loads snapshots into the samplers, several askers' at a time, and keeps what is in use.

    A sampler serves what its last `refresh` named; only this class refreshes the runtime's samplers.

    Args:
        runtime: The samplers and trainers.
        most: Snapshots that each sampler holds, unless more are in use; beyond them the one that was used least
            recently and that nobody uses goes.

    Raises:
        ConfigError: `most` is not positive.
    """

    def __init__(self, runtime: Runtime, *, most: int = 64) -> None:
        if most < 1:
            raise ConfigError(f"most is {most}; an integer >= 1 is needed")
        self._runtime, self.most = runtime, most
        self._shelves: dict[str, _Shelf] = {}

    @asynccontextmanager
    async def loaded(self, model: str, handle: str | None = None) -> AsyncIterator[str]:
        """A snapshot that the model's sampler serves until the block ends.

        Args:
            model: Name of a served base model.
            handle: A snapshot of it; None for the base model itself, as a policy whose adapter changes nothing.

        Yields:
            The handle for `SamplingRequest.snapshot`. A sampler that doesn't know it has lost what it held with its
            process: an `UnknownPolicyError` that the block raises makes the next asker load it again.

        Raises:
            RefusalError: The base model isn't served.
            UnknownPolicyError: The snapshot isn't stored, has expired or was deleted; names it.
            PolicyError: The handle is malformed, the files are torn, or the snapshot is of another base model.
        """
        shelf = self._shelf(model)
        place = await shelf.take(await shelf.base() if handle is None else handle)
        try:
            yield place.handle
        except UnknownPolicyError:  # the sampler was started again since: asking once more loads it
            shelf.lost(place)
            raise
        finally:
            place.users -= 1

    async def forget(self, model: str, handle: str) -> None:
        """Serve a snapshot to nobody new, once it was deleted from the store; who uses it now may finish."""
        await self._shelf(model).forget(handle)

    def held(self, model: str) -> tuple[str, ...]:
        """Handles of what a model's sampler holds, the one used least recently first."""
        return tuple(self._shelf(model).places)

    def _shelf(self, model: str) -> _Shelf:
        engines = self._runtime.engines_of(model)
        if model not in self._shelves:
            self._shelves[model] = _Shelf(engines, SnapshotStore(self._runtime.store), self.most)
        return self._shelves[model]


class _Place:
    """A snapshot that is held or about to be, and how many use it."""

    def __init__(self, handle: str) -> None:
        self.handle, self.users = handle, 0
        self.loaded: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class _Shelf:
    """The snapshots of one sampler; `places` has the one used least recently first."""

    def __init__(self, engines: Engines, store: SnapshotStore, most: int) -> None:
        self._engines, self._store, self._most = engines, store, most
        self.places: dict[str, _Place] = {}
        self._leaving: list[_Place] = []
        self._refreshing = asyncio.Lock()
        self._loading: asyncio.Task[None] | None = None
        self._base: asyncio.Task[str] | None = None

    async def take(self, handle: str) -> _Place:
        """Use a snapshot; give it back by lowering its `users`."""
        if any(place.handle == handle and place.users for place in self._leaving):
            raise UnknownPolicyError(f"{handle} was deleted")
        place = self.places.pop(handle, None) or _Place(handle)
        self.places[handle] = place
        place.users += 1
        if not place.loaded.done() and self._loading is None:
            self._loading = asyncio.create_task(self._load())
        try:
            await asyncio.shield(place.loaded)
        except BaseException:  # the snapshot can't be loaded, or the asker has gone
            place.users -= 1
            raise
        return place

    def lost(self, place: _Place) -> None:
        """Take for lost all that was loaded by the time that this was."""
        if self.places.get(place.handle) is place:
            self.places = {handle: other for handle, other in self.places.items() if not other.loaded.done()}
            self._leaving.clear()

    async def base(self) -> str:
        """Handle of a snapshot whose adapter changes nothing."""
        if self._base is None or (self._base.done() and (self._base.cancelled() or self._base.exception())):
            self._base = asyncio.create_task(self._publish_base())
            self._base.add_done_callback(_look)
        return await asyncio.shield(self._base)

    async def forget(self, handle: str) -> None:
        place = self.places.get(handle)
        if place is None:
            return
        await asyncio.wait([place.loaded])
        if self.places.get(handle) is place:
            del self.places[handle]
            self._leaving.append(place)
            await self._refresh(())

    async def _publish_base(self) -> str:
        name = self._engines.served.catalogue_name
        # a name of the catalogue may be a path or have characters that no policy id may have
        policy = f"base-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
        try:
            return (await asyncio.to_thread(self._store.latest, policy)).handle
        except UnknownPolicyError:
            spec = PolicySpec(base_model=name, rank=1, name=policy)  # a fresh adapter adds zero
            await self._engines.trainer.create(spec)
        try:
            return (await self._engines.trainer.publish(policy)).handle
        finally:
            await self._engines.trainer.delete(policy)

    async def _load(self) -> None:
        try:
            while fresh := [place for place in self.places.values() if not place.loaded.done()]:
                error = await self._refresh(fresh)
                if error is None or len(fresh) == 1:
                    self._answer(fresh, error)
                    continue
                for place in fresh:  # which of them it was shows when they are loaded one by one
                    self._answer([place], await self._refresh([place]))
        finally:
            self._loading = None

    def _answer(self, places: Sequence[_Place], error: Exception | None) -> None:
        for place in places:
            if error is None:
                place.loaded.set_result(None)
                continue
            if self.places.get(place.handle) is place:
                del self.places[place.handle]
            place.loaded.set_exception(error)
            place.loaded.exception()  # whoever waited may have gone

    async def _refresh(self, fresh: Sequence[_Place]) -> Exception | None:
        """Serve what is loaded and these, all or nothing; the error if they can't be."""
        async with self._refreshing:
            self._make_room(len(fresh))
            deleted = {place.handle for place in self._leaving if not place.users}
            self._leaving = [place for place in self._leaving if place.users]
            held = [place.handle for place in (*self.places.values(), *self._leaving) if place.loaded.done()]
            wanted = [place.handle for place in fresh]
            try:
                if deleted.intersection(wanted):  # the sampler still has what the store may not have any more
                    await self._engines.sampler.refresh(held)
                await self._engines.sampler.refresh([*held, *wanted])
            except TinkerActorsError as error:
                return error
            return None

    def _make_room(self, needed: int) -> None:
        unused = [place for place in self.places.values() if place.loaded.done() and not place.users]
        excess = sum(place.loaded.done() for place in self.places.values()) + needed - self._most
        for place in unused[: max(0, excess)]:
            del self.places[place.handle]


def _look(task: asyncio.Task[str]) -> None:
    """See how a task ended, for whoever waited may have gone."""
    if not task.cancelled():
        task.exception()
