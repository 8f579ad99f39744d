"""Node processes that join a mesh in the tests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tinker_actors.actors import Mesh

HERE = Path(__file__).parent


@asynccontextmanager
async def guest(
    mesh: Mesh, *options: str, name: str = "guest", count: int = 2, prefix: tuple[str, ...] = (), url: str | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process with `tinker-actors node`, once the mesh has `count` nodes; killed at the end."""
    command = (sys.executable, "-m", "tinker_actors.cli", "node", "--join", url or mesh.url or "", "--name", name)
    process = await asyncio.create_subprocess_exec(
        *prefix, *command, "--import", "zoo", *options, cwd=HERE, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    reader = asyncio.create_task(process.stderr.read())
    joined = asyncio.create_task(mesh.wait_for_nodes(count, timeout=60))
    try:
        await asyncio.wait([reader, joined], return_when=asyncio.FIRST_COMPLETED)
        if not joined.done():
            raise AssertionError(f"the node ended: {reader.result().decode()}")
        await joined
        yield process
    finally:
        joined.cancel()
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it may have ended without having been waited for yet
                os.kill(process.pid, signal.SIGCONT)
                process.kill()
        await process.wait()
        await reader
