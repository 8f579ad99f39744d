"""Key pairs for links between hosts (CURVE, RFC 26), in files that only their owner can read.

A folder holds `NAME.secret` for each host (its key pair; stays on that host, mode 0600) and `allowed`, one
`NAME PUBLIC-KEY` a line: the hosts that may talk to each other. Each host needs its own secret and `allowed`.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tinker_actors.errors import ConfigError

ALLOWED = "allowed"
SUFFIX = ".secret"
_KEY = re.compile(r"[0-9A-Za-z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")  # Z85
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Keys:
    """One host's key pair and the public keys that it talks to. Keys are Z85, 40 characters.

    Attributes:
        public: this host's public key.
        secret: its secret key; never shown by `repr`.
        allowed: public keys of the hosts that may connect, and that this one connects to.
        server: public key of the host that listens; what `Mesh.join` expects to find there.
    """

    public: str
    secret: str = field(repr=False)
    allowed: frozenset[str]
    server: str

    def __post_init__(self) -> None:
        for key in (self.public, self.secret, self.server, *self.allowed):
            if not _KEY.fullmatch(key):
                raise ConfigError("a key is 40 characters of Z85, as `tinker-actors keys mesh` makes them")

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, server: str | None = None) -> Keys:
        """Read a host's `.secret` file and the `allowed` file beside it.

        Args:
            path: the `.secret` file.
            server: name or public key of the host that listens; None: the first one in `allowed`.

        Raises:
            ConfigError: a file is missing or malformed, or others than its owner can read the secret.
        """
        path = Path(path)
        pair = _read_secret(path)
        hosts = _read_allowed(path.parent / ALLOWED)
        if not hosts:
            raise ConfigError(f"{path.parent / ALLOWED} allows no host")
        chosen = next(iter(hosts.values())) if server is None else hosts.get(server, server)
        if not _KEY.fullmatch(chosen):
            raise ConfigError(f"{path.parent / ALLOWED} names no host {server!r}, only {', '.join(hosts)}")
        return cls(public=pair[0], secret=pair[1], allowed=frozenset(hosts.values()), server=chosen)

    def as_config(self) -> dict[str, Any]:
        """Plain data, for a child process of this host's own."""
        return {"public": self.public, "secret": self.secret, "allowed": sorted(self.allowed), "server": self.server}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Keys:
        """The inverse of `as_config`."""
        return cls(
            public=config["public"],
            secret=config["secret"],
            allowed=frozenset(config["allowed"]),
            server=config["server"],
        )


def passing_pair() -> tuple[Keys, Keys]:
    """Keys that nobody keeps: for one that listens, and for all that join it."""
    import zmq

    (own, own_secret), (others, secret) = [[key.decode() for key in zmq.curve_keypair()] for _ in range(2)]
    allowed = frozenset({own, others})
    listens = Keys(public=own, secret=own_secret, allowed=allowed, server=own)
    return listens, Keys(public=others, secret=secret, allowed=allowed, server=own)


def generate(folder: str | os.PathLike[str], names: Sequence[str]) -> dict[str, str]:
    """Make a key pair for each host name and allow it; returns the public keys by name.

    A folder that exists already gets the new hosts besides its old ones. The first host ever made is the one that
    listens, unless `Keys.load` is told otherwise.

    Raises:
        ConfigError: a name is taken or can't be a file's name; nothing is written then.
    """
    import zmq

    folder = Path(folder)
    known = _read_allowed(folder / ALLOWED) if (folder / ALLOWED).exists() else {}
    for index, name in enumerate(names):
        if not _NAME.fullmatch(name):
            raise ConfigError(f"a host's name consists of letters, digits, dots and dashes, got {name!r}")
        if name in known or name in names[:index] or (folder / f"{name}{SUFFIX}").exists():
            raise ConfigError(f"{folder} has keys for {name!r} already")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    made: dict[str, str] = {}
    for name in names:
        public, secret = (key.decode() for key in zmq.curve_keypair())
        _write(folder / f"{name}{SUFFIX}", f"public {public}\nsecret {secret}\n", os.O_EXCL)
        made[name] = public
    lines = [f"{name} {key}\n" for name, key in {**known, **made}.items()]
    _write(folder / ALLOWED, "".join(lines), os.O_TRUNC)
    return made


def _write(path: Path, text: str, flags: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | flags, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(text)


def _read_secret(path: Path) -> tuple[str, str]:
    try:
        with path.open(encoding="ascii") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise ConfigError(f"{path} has mode {mode:04o}: a secret key must be readable by its owner only (0600)")
            fields = dict(line.split(maxsplit=1) for line in file.read().splitlines())
        return fields["public"], fields["secret"]
    except (OSError, ValueError, KeyError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path} is no secret key of `tinker-actors keys mesh`: {error}") from error


def _read_allowed(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
        hosts = dict(line.split() for line in lines if line.strip() and not line.startswith("#"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is no list of `NAME PUBLIC-KEY` lines: {error}") from error
    for name, key in hosts.items():
        if not _KEY.fullmatch(key):
            raise ConfigError(f"{path}: the key of {name} is not 40 characters of Z85")
    return hosts
