"""Which errors of user code were met before, so that each one's traceback is told once."""

from __future__ import annotations

import re

MOST = 50
"""Distinct errors whose tracebacks are told; those of the others are left out."""

_FRAME = re.compile(r'^[\s|]*File "(.*)", line (\d+), in ', re.MULTILINE)


class Tracebacks:
    """The distinct errors of a worker's life, or of a run.

    Two are the same if they came through the same lines of code: their messages may name what differs from episode to
    episode.
    """

    def __init__(self) -> None:
        self._met: set[object] = set()

    def __bool__(self) -> bool:
        return bool(self._met)

    def is_new(self, text: str) -> bool:
        """Whether a traceback is of an error that wasn't met before, and within the bound on their number."""
        key = tuple(_FRAME.findall(text)) or text
        if key in self._met or len(self._met) == MOST:
            return False
        self._met.add(key)
        return True
