"""An actor that a worker of a Ray cluster imports."""

import os

from tinker_actors.actors import Actor


class Counter(Actor):
    """Counts, somewhere."""

    def __init__(self) -> None:
        self.n = 0

    async def add(self, n: int) -> int:
        """The new count."""
        self.n += n
        return self.n

    async def pid(self) -> int:
        """Where."""
        return os.getpid()
