"""A server of another program as a child process: it ends with its owner, however that ends, and all it started too."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tinker_actors.actors.exits import end_of

_GUARD = Path(__file__).with_name("server_guard.py")


class ChildServer:
    """A command that runs until `stop`, until it ends by itself, or until this process is gone.

    Args:
        command: What to run.
        environment: Variables besides this process's own; those of this process's Python are left out.
        log: File that gets what it writes.
        grace: Seconds between asking it to end and ending it.
    """

    def __init__(
        self, command: Sequence[str], *, environment: Mapping[str, str], log: Path, grace: float = 10.0
    ) -> None:
        self._command, self._log, self._grace = list(command), log, grace
        own = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
        self._environment = {**own, **environment}
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it.

        Raises:
            OSError: The log can't be written.
        """
        with await asyncio.to_thread(self._log.open, "ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-S",  # quicker: it needs no installed package
                "-P",  # its folder's modules are none of its own
                str(_GUARD),
                repr(self._grace),
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        """Whether it has neither ended nor been stopped."""
        return self._process is not None and self._process.returncode is None

    async def wait(self) -> None:
        """Return once it has ended."""
        if self._process is not None:
            await self._process.wait()

    async def stop(self) -> None:
        """End it and all that it started."""
        process = self._process
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(self._grace + 5):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    def tail(self) -> str:
        """The end of what it wrote."""
        return end_of(self._log)
