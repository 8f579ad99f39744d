"""Reading a run's metrics while it writes them: from the beginning, thinned if they are many, or from where one was."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

MOST_RECORDS = 3000
"""Steps that a first reading gives at most, about: of a longer run every second, third, ... one."""
_MOST_BYTES = 1 << 20
"""Of one later reading."""
_EVALUATION = b'"kind": "evaluation"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Some of a run's records.

    Attributes:
        records: Oldest first.
        cursor: Where to go on; opaque. Empty if there is no file yet.
        reset: Whether they are from the beginning: what was read before is void.
        every: They have one of so many steps.
        behind: Whether there is more to be read at once.
    """

    records: list[dict[str, Any]]
    cursor: str
    reset: bool = False
    every: int = 1
    behind: bool = False


def read_metrics(path: Path, cursor: str = "") -> Reading | None:
    """What was written since a cursor; None if nothing was.

    A file that has taken another's place, as when a run is taken up at an earlier step, is read from its beginning.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return None if not cursor else Reading(records=[], cursor="", reset=True)
    with file:
        status = os.fstat(file.fileno())
        place, _, offset = cursor.partition(".")
        start = int(offset) if place == str(status.st_ino) and offset.isdecimal() else -1
        if not 0 <= start <= status.st_size:
            return _from_the_beginning(file, status)
        if start == status.st_size:
            return None
        file.seek(start)
        data = file.read(_MOST_BYTES)
        whole = data.rfind(b"\n") + 1
        if not whole:
            return None
        return Reading(
            records=_decoded(data[:whole].splitlines()),
            cursor=f"{status.st_ino}.{start + whole}",
            behind=start + len(data) < status.st_size,
        )


def last_record(path: Path) -> dict[str, Any] | None:
    """The last whole record of a step; None if there is none near the end of the file."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - (1 << 16)))
            lines = file.read().split(b"\n")[:-1]
    except FileNotFoundError:
        return None
    return next(iter(_decoded([line for line in reversed(lines) if _EVALUATION not in line][:1])), None)


def _from_the_beginning(file: Any, status: os.stat_result) -> Reading:
    first = len(file.readline()) or 1
    every = max(1, -(-status.st_size // first // MOST_RECORDS))
    file.seek(0)
    kept: list[bytes] = []
    end = 0
    for number, line in enumerate(file):
        if not line.endswith(b"\n"):
            break
        end += len(line)
        if number % every == 0 or _EVALUATION in line:
            kept.append(line)
    return Reading(records=_decoded(kept), cursor=f"{status.st_ino}.{end}", reset=True, every=every)


def _decoded(lines: list[bytes]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for line in lines:
        try:
            found.append(orjson.loads(line))
        except orjson.JSONDecodeError:  # a line that a killed process left unfinished
            continue
    return found
