"""Where a mesh's nodes start, other than as child processes of its own."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from tinker_actors.actors.endpoint import Endpoint
from tinker_actors.actors.keys import Keys


class Placement(Protocol):
    """Starts processes elsewhere, each of which joins the mesh as a node."""

    async def open(self) -> tuple[Endpoint, Keys]:
        """Reach what starts the processes; where the mesh is to listen for them, and with which keys.

        Raises:
            SpawnError: It can't be reached.
        """
        ...

    async def start(self, url: str, count: int, *, patience: float, joined: Awaitable[None]) -> None:
        """Start `count` nodes that join at `url`, and wait until all have.

        Args:
            url: Where the mesh listens.
            count: How many.
            patience: Seconds that a cut link to the mesh has to heal before a node ends.
            joined: Done once all are in the mesh, or raises once they took too long.

        Raises:
            SpawnError: One ended instead.
            JoinError: As `joined` does.
        """
        ...

    async def close(self) -> None:
        """End what is left of the nodes, once the mesh has told them that it has ended."""
        ...
