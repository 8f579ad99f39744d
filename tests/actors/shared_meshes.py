"""Meshes that the tests of a module share."""

from contextlib import AsyncExitStack
from typing import Any

from tinker_actors.actors import Mesh


class Shared:
    """One mesh for the tests of a module, one after another. Each gets it without actors, its processes alive."""

    def __init__(self, kind: str, options: dict[str, Any]) -> None:
        self.kind = kind
        # Between two tests the loop stands still, which is nothing to warn of.
        self.options = {"blocked_loop": None, **options}
        self.mesh: Any = None
        self._pids: dict[int, int] = {}
        self._stack = AsyncExitStack()

    async def get(self) -> Mesh:
        if self.mesh is None:
            if self.kind == "tcp":
                self.mesh = await self._stack.enter_async_context(Mesh(listen="tcp://127.0.0.1:0", **self.options))
                await self._stack.enter_async_context(Mesh.join(self.mesh.url))
            else:
                nodes = 1 if self.kind == "local" else 2
                self.mesh = await self._stack.enter_async_context(Mesh(nodes=nodes, **self.options))
            self._pids = self.mesh.pids
        return self.mesh

    async def clear(self) -> None:
        """End what a test left; if that does not make the mesh as it was, the next test gets a new one."""
        directory = self.mesh._directory
        for entry in list(directory.entries.values()):
            if entry.parent not in directory.entries:
                await self.mesh.stop(entry.ref, drain=False, timeout=1.0)
        if directory.entries or self.mesh.pids != self._pids:
            await self.close()

    async def close(self) -> None:
        self.mesh = None
        await self._stack.aclose()
