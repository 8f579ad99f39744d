"""`tinker-actors keys add`, `ls` and `revoke`: who may use a gateway."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import get_args

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tinker_actors.errors import ConfigError
from tinker_actors.gateway import DEFAULT_ROOT
from tinker_actors.gateway.keys import FILE_NAME, ApiKey, KeyStore
from tinker_actors.gateway.scopes import USUAL_SCOPES, Scope

_DAY = 86400.0


def add_api_keys(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands to those of `tinker-actors keys`."""
    add = actions.add_parser("add", help="make an API key for a gateway; it is shown once")
    add.add_argument("tenant", metavar="TENANT", help="whose models, checkpoints and jobs it is for")
    add.add_argument("--name", default="", help="what it is for")
    add.add_argument(
        "--scope",
        dest="scopes",
        action="append",
        choices=get_args(Scope),
        help=f"what it may do; repeatable (default: {', '.join(USUAL_SCOPES)})",
    )
    add.add_argument("--days", type=float, help="how long it is good (default: until it is revoked)")
    listing = actions.add_parser("ls", help="list the API keys of a gateway")
    revoke = actions.add_parser("revoke", help="end an API key at once")
    revoke.add_argument("id", metavar="ID", help="as `tinker-actors keys ls` has it")
    calls: list[tuple[argparse.ArgumentParser, Callable[[argparse.Namespace], int]]] = [
        (add, _add),
        (listing, _list),
        (revoke, _revoke),
    ]
    for command, call in calls:
        command.add_argument(
            "--root", metavar="FOLDER", default=DEFAULT_ROOT, help="the service's folder (default: %(default)s)"
        )
        command.set_defaults(call=lambda options, _overrides, call=call: call(options))


def _add(options: argparse.Namespace) -> int:
    seconds = None if options.days is None else options.days * _DAY
    with KeyStore(Path(options.root) / FILE_NAME) as keys:
        key, secret = keys.add(
            options.tenant, name=options.name, scopes=options.scopes or USUAL_SCOPES, seconds=seconds
        )
    Console().print(Text(secret), soft_wrap=True)
    hint = f"Key {key.id} of {key.tenant} ({', '.join(sorted(key.scopes))}). It is shown this once and kept nowhere."
    Console(stderr=True).print(Text(hint), soft_wrap=True)
    return 0


def _list(options: argparse.Namespace) -> int:
    with _existing(options.root) as keys:
        found = keys.list()
    table = Table.grid(padding=(0, 3))
    for title in ("ID", "TENANT", "NAME", "SCOPES", "STATE", "CREATED", "LAST USED"):
        table.add_column(Text(title, style="dim"), no_wrap=True)
    table.add_row(*(Text(str(column.header)) for column in table.columns))
    for key in found:
        scopes = ",".join(sorted(key.scopes))
        cells = (key.id, key.tenant, key.name, scopes, _state(key), _day(key.created), _day(key.used))
        table.add_row(*map(Text, cells))
    Console(width=250).print(table)
    return 0


def _revoke(options: argparse.Namespace) -> int:
    with _existing(options.root) as keys:
        key = keys.revoke(options.id)
    Console().print(Text(f"Key {key.id} of {key.tenant} is revoked."), soft_wrap=True)
    return 0


def _existing(root: str) -> KeyStore:
    path = Path(root) / FILE_NAME
    if not path.exists():
        raise ConfigError(f"{path} doesn't exist; `tinker-actors keys add` makes it, --root says where the service is")
    return KeyStore(path)


def _state(key: ApiKey) -> str:
    if key.revoked is not None:
        return f"revoked {_day(key.revoked)}"
    if not key.is_good(time.time()):
        return f"expired {_day(key.expires)}"
    return "good" if key.expires is None else f"good until {_day(key.expires)}"


def _day(seconds: float | None) -> str:
    return "never" if seconds is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
