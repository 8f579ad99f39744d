"""Errors of user code in one line."""

from __future__ import annotations

import traceback

_LONGEST_MESSAGE = 500  # characters of an exception's message: some carry whole documents


def describe_error(error: BaseException) -> str:
    """One line: the type, the message and the line of code that raised; what it says itself if it was `described`.

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
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}{': ' if message else ''}{message}{where}"
