"""The parser of the command line: what it refuses fits on one line, which says what may have been meant."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from tinker_actors.errors import ConfigError


class Parser(argparse.ArgumentParser):
    """Of a command, or of a group of commands, which shows its help where none is named."""

    _commands: argparse._SubParsersAction[Any] | None = None

    def add_subparsers(self, **options: Any) -> argparse._SubParsersAction[Any]:
        """As argparse's; a group has no options with values of its own."""
        self._commands = super().add_subparsers(**options)
        return self._commands

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """As argparse's.

        Raises:
            ConfigError: The arguments can't be meant.
        """
        given = list(args or ())
        if self._commands is not None:
            if not given:
                self.exit(2, self.format_help())
            named = next((word for word in given if not word.startswith("-")), None)
            if named is not None and named not in self._commands.choices:
                self.error(f"unknown {self._commands.dest} {named!r}; {_hint(named, list(self._commands.choices))}")
        found, left = super().parse_known_args(given, namespace)
        if left:
            options = re.findall(r"(?<![\w-])--[a-z][a-z-]*", self.format_help())
            close = difflib.get_close_matches(left[0].partition("=")[0], options, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            self.error(f"argument {left[0]!r} is not understood{hint}")
        return found, left

    def error(self, message: str) -> NoReturn:
        """Refuse what was given.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(f"{message}; see `{self.prog} --help`")


def _hint(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]}?" if close else f"one of {', '.join(known)} is needed"
