"""Errors of user code in one line."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

_LONGEST_MESSAGE = 500  # characters of an exception's message: some carry whole documents
_OWN = f"{Path(__file__).parents[1]}/"
_SHIPPED = f"{_OWN}_shipped_environments/"
_LIBRARIES = tuple(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def describe_error(error: BaseException) -> str:
    """One line: the type, the message and the user's line of code; what it says itself if it was `described`.

    >>> try:
    ...     [][0]
    ... except IndexError as error:
    ...     describe_error(error).split(" (")[0]
    'IndexError: list index out of range'
    """
    if isinstance(described := getattr(error, "described", None), str):  # by the process where it was raised
        return described
    message = " ".join(str(error).split())
    if len(message) > _LONGEST_MESSAGE:
        message = f"{message[:_LONGEST_MESSAGE]}..."
    return f"{type(error).__name__}{': ' if message else ''}{message}{_where(error)}"


def _where(error: BaseException) -> str:
    """The innermost line of the user's own code, else that of a library's; none where only this package was at it."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_ours(frame.filename)]
    own = [frame for frame in frames if not frame.filename.startswith((*_LIBRARIES, "<"))]
    found = (own or frames)[-1:]
    return "".join(f" ({frame.filename.rpartition('/')[2]}:{frame.lineno})" for frame in found)


def _is_ours(filename: str) -> bool:
    return filename.startswith(_OWN) and not filename.startswith(_SHIPPED)
