"""Replies to many requests, taken as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

T = TypeVar("T")


async def as_they_come(done: asyncio.Queue[T], count: int) -> AsyncIterator[tuple[T, ...]]:
    """Everything that is put into a queue, together what is there together.

    Args:
        done: What is read.
        count: How many things will be put into it in all.
    """
    while count:
        ready = [await done.get()]
        while not done.empty():
            ready.append(done.get_nowait())
        count -= len(ready)
        yield tuple(ready)
