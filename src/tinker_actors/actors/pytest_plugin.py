"""The pytest plugin: a `mesh` fixture that fails a test which leaves something unattended.

    @pytest.mark.mesh(nodes=2, allow=["failures"])
    async def test_a_worker_comes_back(mesh: Mesh) -> None:
        worker = await mesh.spawn(Worker)
        ...

The marker's arguments are those of `Mesh.test`. It needs pytest-asyncio. Importing this loads no ZeroMQ.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tinker_actors.actors.checked import CheckedMesh

try:
    from pytest_asyncio import fixture
except ImportError:  # the plugin is loaded wherever this package is installed, also for tests that don't use it
    fixture = pytest.fixture


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line("markers", "mesh(**options): options of the `mesh` fixture: those of `Mesh.test`")


@fixture
async def mesh(request: pytest.FixtureRequest) -> AsyncIterator[CheckedMesh]:
    """A running mesh for one test; see `Mesh.test` for what it checks at the end."""
    from tinker_actors.actors import Mesh

    marker = request.node.get_closest_marker("mesh")
    options: dict[str, Any] = {} if marker is None else marker.kwargs
    async with Mesh.test(**options) as mesh:
        yield mesh
