"""API keys: who may ask, as what tenant, and for what.

A key is `tml-` and 256 random bits. Only its SHA-256 digest is kept. A slow, salted hash is for secrets that people
choose, which can be guessed; 2**256 keys can't be, however fast the hash is, and it is computed for every request. A
key is looked up by its digest: how long that takes tells at most about digests, of which nobody can choose a prefix.

The file is asked anew for every request (about 10 microseconds), so a revocation by another process holds from the next
one on.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import secrets
import sqlite3
import stat
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tinker_actors.errors import ConfigError
from tinker_actors.gateway.scopes import SCOPES, USUAL_SCOPES, Scope

logger = logging.getLogger(__name__)

PREFIX = "tml-"
"""What every key begins with; the Tinker client refuses others."""

FILE_NAME = "keys.sqlite"
"""The store's file, in the root of a service."""

_COARSE = 300.0
"""Seconds within which later uses of a key aren't written down."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}\Z")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS keys (
    id TEXT PRIMARY KEY,
    digest BLOB NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    scopes TEXT NOT NULL,
    created REAL NOT NULL,
    expires REAL,
    revoked REAL,
    used REAL
) STRICT
"""
_COLUMNS = "id, digest, tenant, name, scopes, created, expires, revoked, used"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """What is known of a key; times are seconds since 1970.

    Attributes:
        id: Names it in logs and commands; not secret.
        tenant: Whose everything is that is done with it.
        name: What it is for, for people.
        scopes: What it may do.
        created: When it was made.
        expires: When it ends by itself; None if never.
        revoked: When it was revoked, if it was.
        used: When it was last used, to within five minutes; None if never.
    """

    id: str
    tenant: str
    name: str
    scopes: frozenset[Scope]
    created: float
    expires: float | None = None
    revoked: float | None = None
    used: float | None = None

    def is_good(self, now: float) -> bool:
        """Whether it lets anybody in at this time."""
        return self.revoked is None and (self.expires is None or now < self.expires)


class KeyStore:
    """The keys of one service, in SQLite (WAL); several processes may have it open.

    Args:
        path: Its file, which is made, of mode 0600, if it isn't there.
        clock: Seconds since 1970.

    Raises:
        ConfigError: The file is open to others, or is no such store.
    """

    def __init__(self, path: str | Path, *, clock: Callable[[], float] = time.time) -> None:
        self.path, self._clock = Path(path), clock
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # what else is there is of many tenants
        os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
        mode = stat.S_IMODE(self.path.stat().st_mode)
        if mode & 0o077:
            raise ConfigError(f"{self.path} has mode {mode:04o}: others of this host can reach it; it needs 0600")
        self._base = sqlite3.connect(self.path, timeout=5.0, isolation_level=None)
        try:
            self._base.execute("PRAGMA journal_mode = WAL")
            self._base.execute(_SCHEMA)
        except sqlite3.DatabaseError as error:
            self._base.close()
            raise ConfigError(f"{self.path} is no store of keys: {error}") from error

    def close(self) -> None:
        """Close the file."""
        self._base.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def add(
        self, tenant: str, *, name: str = "", scopes: Collection[Scope] = USUAL_SCOPES, seconds: float | None = None
    ) -> tuple[ApiKey, str]:
        """Make a key.

        Args:
            tenant: Whose it is: 1 to 64 of A-Z a-z 0-9 . _ @ -, beginning with a letter or digit.
            name: What it is for.
            scopes: What it may do.
            seconds: How long it is good; without end if None.

        Returns:
            What is known of it, and the key itself, which is kept nowhere.

        Raises:
            ConfigError: A value that can't be.
        """
        if not _NAME.match(tenant):
            raise ConfigError(
                f"tenant is {tenant!r}; it needs 1 to 64 of A-Z a-z 0-9 . _ @ -, beginning with a letter or digit"
            )
        if unknown := set(scopes) - SCOPES:
            raise ConfigError(f"scopes has {sorted(unknown)}; there are {sorted(SCOPES)}")
        if not scopes:
            raise ConfigError(f"scopes is empty; a key needs at least one of {sorted(SCOPES)}")
        if seconds is not None and not 0 < seconds < float("inf"):
            raise ConfigError(f"the time that a key is good is {seconds} s; it must be positive")
        if len(name) > 100 or not name.isprintable():
            raise ConfigError(f"name is {name!r}; it may have 100 printable characters")
        secret, now = PREFIX + secrets.token_urlsafe(32), self._clock()
        key = ApiKey(
            id=secrets.token_hex(4),
            tenant=tenant,
            name=name,
            scopes=frozenset(scopes),
            created=now,
            expires=None if seconds is None else now + seconds,
        )
        row = (key.id, _digest(secret), tenant, name, " ".join(sorted(scopes)), now, key.expires, None, None)
        self._base.execute(f"INSERT INTO keys ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        return key, secret

    def find(self, secret: str) -> ApiKey | None:
        """The key that this is, if it is good."""
        digest = _digest(secret)
        row = self._base.execute(f"SELECT {_COLUMNS} FROM keys WHERE digest = ?", (digest,)).fetchone()
        if row is None or not hmac.compare_digest(row[1], digest):
            return None
        return self._let_in(_read(row))

    def of_id(self, id: str) -> ApiKey | None:
        """The key of an id, if it is good."""
        row = self._base.execute(f"SELECT {_COLUMNS} FROM keys WHERE id = ?", (id,)).fetchone()
        return None if row is None else self._let_in(_read(row))

    def list(self) -> list[ApiKey]:
        """All keys ever made, the oldest first."""
        return [_read(row) for row in self._base.execute(f"SELECT {_COLUMNS} FROM keys ORDER BY created, id")]

    def revoke(self, id: str) -> ApiKey:
        """End a key for good; one that was revoked before stays as it is.

        Raises:
            ConfigError: No key has this id.
        """
        self._base.execute("UPDATE keys SET revoked = ? WHERE id = ? AND revoked IS NULL", (self._clock(), id))
        row = self._base.execute(f"SELECT {_COLUMNS} FROM keys WHERE id = ?", (id,)).fetchone()
        if row is None:
            raise ConfigError(f"no key has the id {id!r}; `tinker-actors keys ls` lists them")
        return _read(row)

    @property
    def ever(self) -> bool:
        """Whether it ever had a key.

        Not whether one is good: a service whose last key was revoked or has expired must not fall open.
        """
        return self._base.execute("SELECT 1 FROM keys LIMIT 1").fetchone() is not None

    @property
    def any_good(self) -> bool:
        """Whether somebody can get in."""
        now = self._clock()
        return any(key.is_good(now) for key in self.list())

    def _let_in(self, key: ApiKey) -> ApiKey | None:
        now = self._clock()
        if not key.is_good(now):
            return None
        if key.used is None or now - key.used >= _COARSE:
            self._note_use(key.id, now)
        return key

    def _note_use(self, id: str, now: float) -> None:
        try:
            self._base.execute("UPDATE keys SET used = ? WHERE id = ?", (now, id))
        except sqlite3.OperationalError as error:  # busy, full or read-only: no reason to turn anybody away
            logger.warning("the use of key %s was not noted: %s", id, error)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def _read(row: tuple[str, bytes, str, str, str, float, float | None, float | None, float | None]) -> ApiKey:
    id, _, tenant, name, scopes, created, expires, revoked, used = row
    return ApiKey(
        id=id,
        tenant=tenant,
        name=name,
        scopes=frozenset(scope for scope in SCOPES if scope in scopes.split()),
        created=created,
        expires=expires,
        revoked=revoked,
        used=used,
    )
