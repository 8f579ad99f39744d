"""The mesh that most tests of the actors run in, three ways."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio

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


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["local", "ipc", "tcp"])
async def shared_mesh(request: pytest.FixtureRequest) -> AsyncIterator[Shared]:
    shared = Shared(request.param, getattr(request.module, "MESH", {}))  # a module's own arguments
    yield shared
    await shared.close()


@pytest_asyncio.fixture(loop_scope="module")
async def mesh(shared_mesh: Shared) -> AsyncIterator[Mesh]:
    """The same program on one node, across two processes, and through the network; actors go to the second node."""
    yield await shared_mesh.get()
    await shared_mesh.clear()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share a mesh share its event loop."""
    for item in items:
        if isinstance(item, pytest.Function) and "shared_mesh" in item.fixturenames:
            item.add_marker(pytest.mark.asyncio(loop_scope="module"), append=False)


@pytest.fixture
async def pair() -> AsyncIterator[Mesh]:
    """This process and two children."""
    async with Mesh(nodes=3) as mesh:
        yield mesh
