"""A mesh's window: how another process of the same user sees what `describe()` says.

In its private folder (mode 0700) a mesh writes a small record of itself and listens on a socket that knows one
request, `describe`. Nothing can be changed through it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from tinker_actors.actors.description import MeshDescription

RECORD = "mesh.json"
SOCKET = "window"
REQUEST = b"describe\n"
LONGEST_REQUEST = 64  # bytes
PATIENCE = 5.0  # seconds for a client to send its request
CLIENTS = 16  # at once; more are turned away


class Window:
    """Listens in `folder` until closed; `describe` is asked once a request."""

    def __init__(self, folder: Path, describe: Callable[[], Awaitable[MeshDescription]]) -> None:
        self._folder = folder
        self._describe = describe
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, name: str, nodes: int) -> None:
        """Listen, then write the record, so that what has a record can be asked."""
        path = self._folder / SOCKET
        self._server = await asyncio.start_unix_server(self._connected, str(path), limit=LONGEST_REQUEST)
        path.chmod(0o600)
        record = {
            "name": name,
            "pid": os.getpid(),
            "nodes": nodes,
            "started": time.time(),
            "command": [sys.executable, *sys.argv],
        }
        temporary = self._folder / f"{RECORD}.new"
        temporary.write_text(json.dumps(record))
        temporary.rename(self._folder / RECORD)

    async def close(self) -> None:
        """Stop listening and let go of the clients."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if len(self._tasks) <= CLIENTS:
                await self._serve(reader, writer)
        except (OSError, ValueError, TimeoutError):
            pass  # the client went away, sent too much or nothing
        except asyncio.CancelledError:
            pass  # the mesh closes; asyncio would log a connection's cancelled task as an error
        finally:
            self._tasks.discard(task)
            with contextlib.suppress(OSError, RuntimeError):
                writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(PATIENCE):
            request = await reader.readline()
        if request == REQUEST:
            description = await self._describe()
            # In a thread: ten thousand actors make megabytes.
            answer = await asyncio.to_thread(_as_json, description)
            writer.write(answer)
            async with asyncio.timeout(PATIENCE):
                await writer.drain()


def _as_json(description: MeshDescription) -> bytes:
    return json.dumps(dataclasses.asdict(description)).encode() + b"\n"
