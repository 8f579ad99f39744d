"""Finding the large `bytes` in a value, so that they can travel beside the message like arrays.

msgpack writes bytes itself and asks nobody. A look at the first few items of a value finds them before they are
copied; where that look didn't reach, they are seen in what msgpack wrote, and the value is written again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, cast

LARGE: Final = 65_536  # bytes
LOOKED_AT: Final = 16  # items of a container
DEPTH: Final = 4  # containers within containers

CANDIDATES: Final[frozenset[type]] = frozenset({bytes, bytearray, memoryview, list, tuple, dict})
"""What large bytes are, or may stand in."""

PLAIN: Final[frozenset[type]] = frozenset({int, float, str, bool, type(None)})
"""What msgpack writes by itself, and that can't hold large bytes."""

_BIN32: Final = re.compile(rb"\xc6(?!\x00\x00)", re.DOTALL)


class Found(Exception):  # noqa: N818
    """Large bytes were met: the value must be lifted first."""


class Lifted:
    """Stands in a value for bytes that travel as a frame."""

    __slots__ = ("buffer",)

    def __init__(self, buffer: memoryview) -> None:
        self.buffer = buffer


def has_large(items: Iterable[Any], depth: int = DEPTH) -> bool:
    """Whether a quick look finds large bytes."""
    for item in items:
        kind = item.__class__
        if kind not in CANDIDATES:
            continue
        if kind is bytes or kind is bytearray:
            if len(item) >= LARGE:
                return True
        elif kind is list or kind is tuple:
            if item and depth and has_large(item if len(item) <= LOOKED_AT else item[:LOOKED_AT], depth - 1):
                return True
        elif kind is dict:
            if item and depth and len(item) <= LOOKED_AT and has_large(item.values(), depth - 1):
                return True
        elif kind is memoryview and item.nbytes >= LARGE:
            return True
    return False


def holds_large(data: bytes) -> bool:
    """Whether msgpack's output may hold large bytes; sure if it says no."""
    for match in _BIN32.finditer(data):
        start = match.end()
        size = int.from_bytes(data[start : start + 4], "big")
        if LARGE <= size <= len(data) - start - 4:
            return True
    return False


def lift(value: Any) -> Any:
    """The value with `Lifted` in the place of large bytes, in new containers where need be."""
    kind = value.__class__
    if kind is bytes or kind is bytearray or kind is memoryview:
        if memoryview(value).nbytes < LARGE:
            return value
        return Lifted(memoryview(value).cast("B"))
    if kind is list:
        return [lift(item) for item in value]
    if kind is tuple:
        return tuple(lift(item) for item in value)
    if kind is dict:
        return {key: lift(item) for key, item in cast(dict[Any, Any], value).items()}
    return value
