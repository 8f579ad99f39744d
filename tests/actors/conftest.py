from collections.abc import AsyncIterator

import pytest

from tinker_actors.actors import Mesh


@pytest.fixture(params=[1, 2], ids=["local", "ipc"])
async def mesh(request: pytest.FixtureRequest) -> AsyncIterator[Mesh]:
    """The same program on one node and across two processes; actors without a node go to the child."""
    async with Mesh(nodes=request.param) as mesh:
        yield mesh


@pytest.fixture
async def pair() -> AsyncIterator[Mesh]:
    """This process and two children."""
    async with Mesh(nodes=3) as mesh:
        yield mesh
