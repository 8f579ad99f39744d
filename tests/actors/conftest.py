"""The mesh that most tests of the actors run in, three ways."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import pytest_asyncio
from shared_meshes import Shared
from soaking import Soak

from tinker_actors.actors import Mesh

try:
    import uvloop
except ImportError:  # not on Windows
    uvloop = None


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


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """What holds in the shared mesh holds on both loops."""
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
    if isinstance(item, pytest.Function) and "shared_mesh" in item.fixturenames and uvloop is not None:
        factories["uvloop"] = uvloop.new_event_loop
    return factories


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Let those on one loop run together, or every test would need a mesh of its own."""
    if "shared_mesh" in metafunc.fixturenames:
        metafunc.definition.add_marker(pytest.mark.asyncio(loop_scope="module"), append=False)


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


@pytest.fixture(scope="session", autouse=True)
def soak(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Soak | None]:
    """The soak, if its test is among those that run. It begins with the first of them, so that it ends beside them."""
    if not any(item.path.name == "test_actors_soak.py" for item in request.session.items):
        yield None
        return
    shared = "PYTEST_XDIST_WORKER" in os.environ  # each of them has a folder below that of all
    folder = tmp_path_factory.getbasetemp()
    soak = Soak((folder.parent if shared else folder) / "soak")
    yield soak
    soak.end(awaited=shared)
