"""Rows of JSONL files, read one at a time: what is held of a file is where its lines begin."""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from tinker_actors.errors import ConfigError, DataError

_MARK = "\ufeff"


class ChatSource(Protocol):
    """Rows that can be read in any order, by any thread."""

    def __len__(self) -> int: ...

    def row(self, index: int) -> object:
        """What a row holds.

        Raises:
            DataError: It can't be read; says why, and not where.
        """
        ...

    def where(self, index: int) -> str:
        """Names a row for people, such as `train.jsonl:17`."""
        ...

    @property
    def folder(self) -> Path:
        """What paths within a row start from."""
        ...


class JsonlFile:
    """A JSONL file. Blank lines are no rows; lines count from 1.

    Args:
        path: The file. It is read once, to find where its lines begin: 12 bytes of memory a line.

    Raises:
        ConfigError: It can't be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offsets, self._lines = array("q"), array("i")
        offset = 0
        try:
            with path.open("rb") as file:
                for number, line in enumerate(file, start=1):
                    if not line.isspace():
                        self._offsets.append(offset)
                        self._lines.append(number)
                    offset += len(line)
        except OSError as error:
            raise ConfigError(f"{path}: can't be read: {error.strerror}") from None
        self._size = offset

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def folder(self) -> Path:
        """The file's folder."""
        return self._path.parent

    def where(self, index: int) -> str:
        """The file's name and the line's number."""
        return f"{self._path}:{self._lines[index]}"

    def row(self, index: int) -> object:
        """A line's value.

        Raises:
            DataError: It isn't JSON in UTF-8, or the file is gone or became shorter.
        """
        start = self._offsets[index]
        stop = self._offsets[index + 1] if index + 1 < len(self._offsets) else self._size
        try:
            with self._path.open("rb", buffering=0) as file:
                line = os.pread(file.fileno(), stop - start, start)
        except OSError as error:
            raise DataError(f"the file can't be read any more: {error.strerror}") from None
        if len(line) < stop - start:
            raise DataError(f"the file became shorter while it was in use: {len(line)} of {stop - start} bytes")
        try:
            return json.loads(line.decode("utf-8").removeprefix(_MARK))
        except json.JSONDecodeError as error:
            raise DataError(f"not valid JSON: {error.msg} at column {error.colno}") from None
        except UnicodeDecodeError as error:
            raise DataError(f"not UTF-8: byte {error.start} is {line[error.start]:#04x}") from None


class Joined:
    """Several sources as one, in order."""

    def __init__(self, sources: Sequence[ChatSource]) -> None:
        self._sources = tuple(sources)
        self._ends: list[int] = []
        for source in self._sources:
            self._ends.append((self._ends[-1] if self._ends else 0) + len(source))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def at(self, index: int) -> tuple[ChatSource, int]:
        """The source of a row, and the row's index there."""
        begin = 0
        for source, end in zip(self._sources, self._ends, strict=True):
            if index < end:
                return source, index - begin
            begin = end
        raise IndexError(f"row {index} of {len(self)}")
