"""Which classes a request from another host may name."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any

from tinker_actors.actors import main_module
from tinker_actors.actors.actor import Actor
from tinker_actors.actors.control import ClassLocation
from tinker_actors.actors.errors import SpawnError


class Imports:
    """Modules that may be named: those at or below one of `prefixes`, imported when needed.

    Without prefixes, those that this program has imported already: a request from elsewhere then runs no module's
    code for the first time. Files are never loaded by path, and another host's script is never run.
    """

    def __init__(self, prefixes: Sequence[str] | None) -> None:
        self._prefixes = None if prefixes is None else tuple(prefixes)

    def find(self, location: ClassLocation) -> type[Actor]:
        """The class.

        Raises:
            SpawnError: its module may not be named, can't be imported, or holds no such actor.
        """
        name = location.module
        if name == main_module.MAIN:
            raise SpawnError(
                f"{location.qualname} is defined in the script of another host; put it into a module that both have"
            )
        if not self._allows(name):
            raise SpawnError(
                f"module {name} may not be asked for from another host: {self._rule()}; see `imports=` or --import"
            )
        try:
            found: Any = importlib.import_module(name)
        except Exception as error:  # the module's own top-level code
            raise SpawnError(f"module {name} can't be imported here: {type(error).__name__}: {error}") from error
        for part in location.qualname.split("."):
            found = getattr(found, part, None)
        if isinstance(found, type) and issubclass(found, Actor):
            return found
        raise SpawnError(f"{name}:{location.qualname} is {'not there' if found is None else 'no Actor'}")

    def _allows(self, name: str) -> bool:
        if self._prefixes is None:
            return name in sys.modules
        return any(name == prefix or name.startswith(f"{prefix}.") for prefix in self._prefixes)

    def _rule(self) -> str:
        if self._prefixes is None:
            return "only modules that are imported already may"
        return f"only {', '.join(self._prefixes) or 'none'} may"
