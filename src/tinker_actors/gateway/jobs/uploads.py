"""Rows that clients upload for their jobs, such as conversations to learn from: JSON Lines, kept by their content."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import secrets
from collections.abc import AsyncIterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from tinker_actors.gateway.refusals import RefusalError, not_found

PREFIX = "upload:"
"""What a configuration's names of uploads begin with."""

FOLDER = "uploads"

_NAME = re.compile(r"[0-9a-f]{64}\Z")
_LONGEST = 16 * 2**20
"""Bytes of a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """What was uploaded.

    Attributes:
        name: `upload:` and the SHA-256 digest of its rows.
        rows: How many.
        size: Bytes.
    """

    name: str
    rows: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """An upload as it lies there.

    Attributes:
        tenant: Whose it is.
        name: `upload:` and the SHA-256 digest of its rows.
        path: Where.
        size: Bytes.
        used: When it was uploaded, or named by a submission if that was later, in seconds since 1970.
    """

    tenant: str
    name: str
    path: Path
    size: int
    used: float


class Uploads:
    """The uploads of all tenants, each tenant's in a folder of its own.

    Args:
        root: The scheduler's folder; they lie in `uploads/TENANT/` there.
        most: Bytes of an upload.
        most_of_tenant: Bytes of all that a tenant has uploaded.
        uploads_of_tenant: How many uploads a tenant has at most.
    """

    def __init__(self, root: Path, *, most: int, most_of_tenant: int, uploads_of_tenant: int = 4096) -> None:
        self._root, self._most, self.most_of_tenant = root, most, most_of_tenant
        self._uploads_of_tenant = uploads_of_tenant
        self._taking: dict[str, asyncio.Lock] = {}

    async def take(self, tenant: str, chunks: AsyncIterable[bytes]) -> Upload:
        """Keep what a client sends, once all of it is there and every row can be used.

        Raises:
            RefusalError: 413 if it is too much, or one too many; 400 for a line that can't be a row, which it names.
        """
        async with self._taking.setdefault(tenant, asyncio.Lock()):  # what one takes is no more room for another
            return await self._take(self._root / FOLDER / tenant, chunks)

    async def _take(self, folder: Path, chunks: AsyncIterable[bytes]) -> Upload:
        present = await asyncio.to_thread(_sizes_in, folder)
        left = self.most_of_tenant - sum(present.values())
        draft = folder / f".draft-{secrets.token_hex(8)}"
        try:
            with draft.open("xb") as file:
                most = self._most if left >= self._most else self.most_of_tenant
                rows = _Rows(file, room=min(self._most, left), most=most)
                # a chunk may be the whole body, whose rows take seconds to check
                async for chunk in chunks:
                    await asyncio.to_thread(rows.add, chunk)
                await asyncio.to_thread(rows.end)
            if not rows.count:
                raise RefusalError(400, "the upload has no rows; a JSON object on each line is needed", code="no_rows")
            name = f"{rows.digest}.jsonl"
            if len(present) >= self._uploads_of_tenant and name not in present:
                raise RefusalError(
                    413,
                    f"the tenant has {len(present)} uploads; at most {self._uploads_of_tenant} are kept: delete some",
                    code="too_many",
                )
            draft.replace(folder / name)
        finally:
            draft.unlink(missing_ok=True)
        return Upload(name=PREFIX + rows.digest, rows=rows.count, size=rows.size)

    def path_of(self, tenant: str, name: str) -> str:
        """Where an upload of a tenant lies, relative to the scheduler's folder.

        Raises:
            RefusalError: It has none of this name.
        """
        digest = name.removeprefix(PREFIX)
        path = f"{FOLDER}/{tenant}/{digest}.jsonl"
        if not _NAME.match(digest) or not (self._root / path).is_file():
            raise not_found("upload", name)
        os.utime(self._root / path)
        return path

    def kept(self, tenant: str | None) -> list[Kept]:
        """The uploads of a tenant, or of all, the oldest first. Reads files."""
        found: list[Kept] = []
        root = self._root / FOLDER
        for folder in [root / tenant] if tenant is not None else root.glob("*"):
            for path in folder.glob("*.jsonl"):
                with contextlib.suppress(FileNotFoundError):  # deleted just now
                    status = path.stat()
                    name = PREFIX + path.stem
                    found.append(
                        Kept(tenant=folder.name, name=name, path=path, size=status.st_size, used=status.st_mtime)
                    )
        return sorted(found, key=lambda kept: (kept.used, kept.name))


def _sizes_in(folder: Path) -> dict[str, int]:
    """Bytes of each file in a folder, which is made if it isn't there."""
    folder.mkdir(parents=True, exist_ok=True)
    return {entry.name: entry.stat().st_size for entry in os.scandir(folder)}


def shown(path: str) -> str:
    """What a client calls a path that `path_of` gave; other text stays as it is."""
    parts = path.split("/")
    return PREFIX + parts[2].removesuffix(".jsonl") if len(parts) == 3 and parts[0] == FOLDER else path


class _Rows:
    """The rows of an upload, checked and written as they come.

    Args:
        file: Where they go.
        room: Bytes that there may be.
        most: Bytes that an error says there may be.

    Attributes:
        count: Rows so far.
        size: Their bytes, as written.
    """

    def __init__(self, file: BinaryIO, *, room: int, most: int) -> None:
        self._file, self._room, self._most = file, room, most
        self._sum = hashlib.sha256()
        self._rest, self._line = b"", 0
        self.count = self.size = 0

    @property
    def digest(self) -> str:
        """The SHA-256 digest of the rows, in hex."""
        return self._sum.hexdigest()

    def add(self, chunk: bytes) -> None:
        """Take the next piece of what is sent; blocks."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > _LONGEST:
            raise _too_long(self._line + len(lines) + 1)
        for line in lines:
            self._take(line)

    def end(self) -> None:
        """That was all: the last line needs no end."""
        self._take(self._rest)

    def _take(self, line: bytes) -> None:
        self._line += 1
        if not line.strip():
            return
        row = _row(self._line, line)
        self.count += 1
        self.size += len(row)
        if self.size > self._room:
            raise _too_much(self._most, self.size)
        self._sum.update(row)
        self._file.write(row)


def _row(number: int, line: bytes) -> bytes:
    """A line as it is kept: written anew, so that whoever reads it later sees what was checked here."""
    if len(line) > _LONGEST:
        raise _too_long(number)
    try:
        row = json.loads(line.decode("utf-8").removeprefix("\ufeff"))
        if not isinstance(row, dict):
            raise RefusalError(400, f"line {number} is no JSON object", code="bad_row")
        _refuse_files(row, number)
        return json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    except (ValueError, RecursionError) as error:  # of JSON and of Unicode
        raise RefusalError(400, f"line {number} is no JSON in UTF-8: {error}", code="bad_row") from None


def _refuse_files(value: object, number: int) -> None:
    """Images are part of the row: what names one by a path would be read from this machine's disk."""
    if isinstance(value, list):
        for entry in cast("list[object]", value):
            _refuse_files(entry, number)
    elif isinstance(value, dict):
        fields = cast("Mapping[str, object]", value)
        for name, entry in fields.items():
            if name in ("image", "image_url") and not _is_data(entry):
                raise RefusalError(
                    400,
                    f"line {number} has an image that is no data URL; 'data:image/png;base64,...' is",
                    code="bad_row",
                )
            _refuse_files(entry, number)


def _is_data(entry: object) -> bool:
    if isinstance(entry, dict):
        fields = cast("Mapping[str, object]", entry)
        return set(fields) <= {"url", "detail"} and _is_data(fields.get("url"))
    return isinstance(entry, str) and entry.startswith("data:")


def _too_much(most: int, size: int) -> RefusalError:
    return RefusalError(
        413, f"the upload is larger than the {most} bytes that may be kept ({size} and more)", code="too_large"
    )


def _too_long(number: int) -> RefusalError:
    return RefusalError(413, f"line {number} is longer than {_LONGEST} bytes", code="too_large")
