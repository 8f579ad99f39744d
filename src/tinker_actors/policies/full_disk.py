"""A full disk as the error that it is everywhere, also where a library that writes weights has one of its own."""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from contextlib import contextmanager

from safetensors import SafetensorError

from tinker_actors.errors import FULL_DISK

_NUMBER = re.compile(r"\(os error (\d+)\)")


@contextmanager
def full_disk_told(place: str) -> Generator[None]:
    """Within it a full disk is an `OSError`. That of safetensors bears the system's number in its text alone.

    Args:
        place: The file name of the error.

    Raises:
        OSError: The disk or a quota is full.
    """
    try:
        yield
    except SafetensorError as error:
        found = _NUMBER.search(str(error))
        number = int(found[1]) if found else 0
        if number not in FULL_DISK:
            raise
        raise OSError(number, os.strerror(number), place) from error
