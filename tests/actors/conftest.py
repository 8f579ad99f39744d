from collections.abc import AsyncIterator

import pytest

from tinker_actors.actors import Mesh


@pytest.fixture(params=["local", "ipc", "tcp"])
async def mesh(request: pytest.FixtureRequest) -> AsyncIterator[Mesh]:
    """The same program on one node, across two processes, and through the network; actors go to the second node."""
    options = getattr(request.module, "MESH", {})  # a module's own arguments
    if request.param == "tcp":
        async with Mesh(listen="tcp://127.0.0.1:0", **options) as mesh, Mesh.join(mesh.url or ""):
            yield mesh
    else:
        async with Mesh(nodes=1 if request.param == "local" else 2, **options) as mesh:
            yield mesh


@pytest.fixture
async def pair() -> AsyncIterator[Mesh]:
    """This process and two children."""
    async with Mesh(nodes=3) as mesh:
        yield mesh
