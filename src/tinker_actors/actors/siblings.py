"""All-for-one: when an actor fails, those that the same parent spawned fail with it and restart by their own policies.

No sibling begins another message in its old incarnation once the failed actor's new one has started. Failures of one
family are taken one after another, and an incarnation that went down with another one's failure takes nobody down
itself: so two that fail at the same moment restart everyone once.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from tinker_actors.actors.errors import ActorDiedError
from tinker_actors.errors import ActorError

if TYPE_CHECKING:
    from tinker_actors.actors.directory import Directory, Entry


class Families:
    """The actors of the directory that restart together."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._locks: dict[int, asyncio.Lock] = {}

    async def failed(self, entry: Entry, incarnation: int, why: str) -> None:
        """Take down the siblings of an actor whose incarnation failed; returns once each knows."""
        parent = entry.parent
        if parent is None:
            return
        lock = self._locks.setdefault(parent, asyncio.Lock())
        async with lock:
            if incarnation > entry.fallen:
                entry.fallen = incarnation
                error = ActorDiedError(f"{entry.ref.address.name} failed, and they restart together: {why}")
                await asyncio.gather(*(self._take_down(sibling, error) for sibling in self._siblings(entry)))

    def forget(self, parent: int) -> None:
        """A parent has ended."""
        self._locks.pop(parent, None)

    def _siblings(self, entry: Entry) -> list[Entry]:
        entries = self._directory.entries
        parent = entries.get(entry.parent) if entry.parent is not None else None
        found = [entries[ident] for ident in parent.children if ident in entries] if parent is not None else []
        return [other for other in found if other is not entry and other.started]

    async def _take_down(self, sibling: Entry, error: ActorDiedError) -> None:
        directory, address = self._directory, sibling.ref.address
        fallen: int | None = sibling.incarnation
        if not address.node:
            cell = directory.node.cells.get(address.id)
            fallen = cell.life.fail_with_sibling(error) if cell is not None else None
        elif directory.node.exchange.is_linked(address.node):
            agent: Any = directory.agents[address.node]
            with contextlib.suppress(ActorError):  # its process has died too
                fallen = await agent.fail_with_sibling(address.id, error)
        if fallen is not None:
            sibling.fallen = max(sibling.fallen, fallen)
