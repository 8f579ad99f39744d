"""Append-only JSON lines, such as a run's metrics."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from tinker_actors.errors import DataError


class JsonlWriter:
    """Appends one JSON object a line; each line reaches the file whole and at once."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a record.

        Raises:
            ValueError: A number is not finite, which JSON can't hold.
        """
        self._file.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> JsonlWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """All whole records; a last line that was cut in the middle is left out.

    Raises:
        DataError: Another line isn't JSON.
    """
    if not path.exists():
        return []
    *lines, _unfinished = path.read_text(encoding="utf-8").split("\n")
    return [_record(path, number, line) for number, line in enumerate(lines, start=1) if line]


def _record(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        return json.loads(line)
    except ValueError as error:
        raise DataError(f"{path}:{number}: not valid JSON: {error}") from error


def keep_records(path: Path, keep: Callable[[dict[str, Any]], bool]) -> None:
    """Rewrite a file with the records that `keep` accepts; atomic."""
    records = [record for record in read_jsonl(path) if keep(record)]
    temporary = path.with_name(f".{path.name}.partial")
    temporary.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")
    temporary.replace(path)
