"""`tinker-actors serve` as a process of its own."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path


class Served:
    """A serving process.

    Attributes:
        process: The process.
        url: Where it serves.
        root: Where it was started.
    """

    def __init__(self, process: asyncio.subprocess.Process, url: str, root: Path) -> None:
        self.process, self.url, self.root = process, url, root

    async def next_line(self) -> bytes:
        """The next line that it prints."""
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        assert line, "it has ended"
        return line

    async def end(self, number: int = signal.SIGINT) -> int:
        """Signal it and wait for its end; its exit status."""
        self.process.send_signal(number)
        return await self.process.wait()


async def start(root: Path, *arguments: str) -> asyncio.subprocess.Process:
    """Start the command; it need not succeed."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tinker_actors.cli", "serve", "--root", str(root / "serve"), *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=root,
    )


@asynccontextmanager
async def serve_process(root: Path, *arguments: str, port: int = 0) -> AsyncIterator[Served]:
    """Serve until the block is left; killed then if it still runs."""
    process = await start(root, "--port", str(port), *arguments)
    assert process.stdout is not None
    try:
        printed = b""
        while (found := re.search(rb"serving on (http://\S+)", printed)) is None:
            line = await process.stdout.readline()
            assert line, printed.decode()
            printed += line
        yield Served(process, found[1].decode(), root)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
