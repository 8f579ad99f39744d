"""Logs: lines for people, or JSON lines for programs; both name the trace, tenant, key and job of a request."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from tinker_actors.gateway.observing.context import present

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def record_fields(record: logging.LogRecord) -> dict[str, Any]:
    """What a record says besides its message: what was passed as `extra`, and the request that it belongs to."""
    fields: dict[str, Any] = {}
    if (asked := present.get()) is not None:
        known = {"trace_id": asked.trace, "tenant": asked.tenant, "key": asked.key, "job": asked.job}
        fields |= {name: value for name, value in known.items() if value}
    fields |= {name: value for name, value in vars(record).items() if name not in _PLAIN}
    return fields


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `time` (UTC), `level`, `logger`, `message`, what else is known, and `error`."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **record_fields(record),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class LineFormatter(logging.Formatter):
    """A line for people; control characters are written out, so that no request can forge a line."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """The line, before any traceback."""
        return _printable(super().formatMessage(record) + _written(record_fields(record)))


def _written(fields: Mapping[str, Any]) -> str:
    return "".join(f" {name}={value}" for name, value in fields.items())


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def _file(path: Path) -> logging.Handler:
    return RotatingFileHandler(path, maxBytes=64 << 20, backupCount=4, encoding="utf-8")


def configure_logging(*, as_json: bool = False, path: Path | None = None, level: int = logging.INFO) -> None:
    """Send the program's logs to a file, or to standard error; whatever handlers there were go.

    A file that reaches 64 MiB becomes `.1`, an earlier one `.2`, up to `.4`.

    Args:
        as_json: JSON lines rather than lines for people.
        path: The file, which is appended to.
        level: The least that is logged.
    """
    handler = logging.StreamHandler(sys.stderr) if path is None else _file(path)
    handler.setFormatter(JsonFormatter() if as_json else LineFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
