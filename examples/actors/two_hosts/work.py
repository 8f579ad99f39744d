"""The actor that both hosts know by name."""

from __future__ import annotations

import socket

from tinker_actors.actors import Actor


class Summer(Actor):
    """Sums squares, and says where."""

    async def squares(self, start: int, stop: int) -> int:
        return sum(number * number for number in range(start, stop))

    async def where(self) -> str:
        return socket.gethostname()
