"""Dataclasses as rows of SQLite: a class is a table, a field a column."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, Generic, TypeVar

import orjson

R = TypeVar("R")

_PLAIN = (str, int, float, bytes, type(None))


class Table(Generic[R]):
    """The rows of one class in a database.

    Numbers, text and None are stored as they are; truth values as 0 or 1; tuples and mappings as JSON. Columns that the
    class gained since the file was made are added, and hold the field's default.

    Args:
        connection: The database, in autocommit mode.
        kind: The class, a dataclass; its first field is the key.
        name: The table's name.
        index: Columns that rows are looked up by.
    """

    def __init__(
        self, connection: sqlite3.Connection, kind: type[R], name: str, *, index: tuple[str, ...] = ()
    ) -> None:
        self._connection, self._kind, self._name = connection, kind, name
        self._fields = fields(kind)  # pyright: ignore[reportArgumentType]
        self._key = self._fields[0].name
        columns = [column.name for column in self._fields]
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {name} ({self._key} TEXT PRIMARY KEY, {', '.join(columns[1:])})"
        )
        present = {row[1] for row in connection.execute(f"PRAGMA table_info({name})")}
        for column in self._fields:
            if column.name not in present:
                connection.execute(f"ALTER TABLE {name} ADD COLUMN {column.name}")
                connection.execute(f"UPDATE {name} SET {column.name} = ?", (_stored(_default(column)),))
        for column in index:
            connection.execute(f"CREATE INDEX IF NOT EXISTS {name}_{column} ON {name} ({column})")

    def put(self, record: R) -> None:
        """Write a row, in the place of one of the same key."""
        names = [column.name for column in self._fields]
        values = [_stored(getattr(record, name)) for name in names]
        self._connection.execute(
            f"INSERT OR REPLACE INTO {self._name} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})", values
        )

    def update(self, key: str, **changes: Any) -> bool:
        """Change some of a row's columns; says whether there is such a row."""
        assignments = ", ".join(f"{name} = ?" for name in changes)
        values = [*map(_stored, changes.values()), key]
        query = f"UPDATE {self._name} SET {assignments} WHERE {self._key} = ?"
        return self._connection.execute(query, values).rowcount > 0

    def add(self, key: str, column: str, amount: int) -> bool:
        """Add to a number of a row; says whether there is such a row."""
        query = f"UPDATE {self._name} SET {column} = {column} + ? WHERE {self._key} = ?"
        return self._connection.execute(query, (amount, key)).rowcount > 0

    def delete(self, key: str) -> bool:
        """Delete a row; says whether there was one."""
        return self._connection.execute(f"DELETE FROM {self._name} WHERE {self._key} = ?", (key,)).rowcount > 0

    def get(self, key: str) -> R | None:
        """The row of a key."""
        return next(iter(self.where(f"{self._key} = ?", key)), None)

    def where(
        self, condition: str = "1", *values: object, order: str = "rowid", limit: int = -1, offset: int = 0
    ) -> list[R]:
        """The rows that a condition in SQL holds for; `values` stand for its question marks."""
        query = f"SELECT * FROM {self._name} WHERE {condition} ORDER BY {order} LIMIT ? OFFSET ?"
        cursor = self._connection.execute(query, (*values, limit, offset))
        names = [column[0] for column in cursor.description]
        return [self._read(dict(zip(names, row, strict=True))) for row in cursor]

    def count(self, condition: str = "1", *values: object) -> int:
        """How many rows a condition holds for."""
        query = f"SELECT COUNT(*) FROM {self._name} WHERE {condition}"
        return self._connection.execute(query, values).fetchone()[0]

    def _read(self, row: Mapping[str, Any]) -> R:
        values = {column.name: _restored(row[column.name], _default(column)) for column in self._fields}
        return self._kind(**values)


def _default(column: Any) -> Any:
    if column.default_factory is not MISSING:
        return column.default_factory()
    return None if column.default is MISSING else column.default


def _stored(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    return value if isinstance(value, _PLAIN) else orjson.dumps(value).decode()


def _restored(value: Any, default: Any) -> Any:
    if isinstance(default, bool):
        return bool(value)
    if isinstance(default, tuple):
        return tuple(orjson.loads(value))
    if isinstance(default, dict):
        return orjson.loads(value)
    return value
