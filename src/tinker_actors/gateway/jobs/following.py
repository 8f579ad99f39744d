"""Files that a job writes, from where a reader is, to their present end or on until the job is over."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

_CHUNK = 1 << 16
_SOON, _LATE = 0.05, 1.0
"""Seconds between two looks at a file: after something came, and at most when nothing comes."""


class Ends:
    """Tells when a job is over, and how long to wait before another look at what it writes.

    Args:
        wait: Returns once the job is over.
    """

    def __init__(self, wait: Awaitable[object]) -> None:
        self._over = asyncio.ensure_future(wait)
        self._pause = _SOON

    @property
    def over(self) -> bool:
        """Whether the job is over, or the scheduler ends; ask before reading what is to be the last."""
        return self._over.done()

    def came(self) -> None:
        """Something was written."""
        self._pause = _SOON

    async def pause(self) -> None:
        """Wait, but not beyond the job's end."""
        await asyncio.wait([self._over], timeout=self._pause)
        self._pause = min(self._pause * 1.5, _LATE)

    async def close(self) -> None:
        """Stop waiting."""
        self._over.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):  # that the scheduler ends is no news here
            await self._over


async def file_bytes(path: Path, offset: int, ends: Ends | None) -> AsyncIterator[bytes]:
    """A file that is only ever appended to.

    Args:
        path: It need not be there yet.
        offset: From which byte.
        ends: Go on until the job is over; None stops at the present end.
    """
    while True:
        last = ends is None or ends.over
        chunk = _read(path, offset)
        if chunk:
            offset += len(chunk)
            yield chunk
            if ends is not None:
                ends.came()
        elif last:
            return
        elif ends is not None:
            await ends.pause()


async def file_rows(path: Path, start: int, ends: Ends | None) -> AsyncIterator[bytes]:
    """The rows of a JSON Lines file, each with its line's end.

    A job that goes on from a checkpoint drops the rows past it and writes them again; they are given again then.

    Args:
        path: It need not be there yet.
        start: How many rows to skip.
        ends: Go on until the job is over; None stops at the present end.
    """
    file, offset, rest = _identity(path), 0, b""
    seen: list[int] = []  # a hash of every row so far: what of a file that was written anew is as it was
    index, skip = 0, start
    while True:
        last = ends is None or ends.over
        if (now := _identity(path)) != file:
            file, offset, rest, index = now, 0, b"", 0
            skip = min(skip, len(seen))
        chunk = _read(path, offset)
        if not chunk and ends is not None and not last:
            await ends.pause()
            continue
        if not chunk:
            return
        offset += len(chunk)
        *lines, rest = (rest + chunk).split(b"\n")
        fresh: list[bytes] = []
        for line in lines:
            if seen[index : index + 1] != [hash(line)]:
                seen[index:] = [hash(line)]
                if index >= skip:
                    fresh.append(line + b"\n")
            index += 1
        if fresh:
            yield b"".join(fresh)
        if ends is not None:
            ends.came()


def _read(path: Path, offset: int) -> bytes:
    try:
        with path.open("rb", buffering=0) as file:
            return os.pread(file.fileno(), _CHUNK, offset)
    except FileNotFoundError:
        return b""


def _identity(path: Path) -> int:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return -1
