"""What commands print, for a reader at a terminal or a program behind a pipe."""

from __future__ import annotations

import json

from rich.console import Console
from rich.table import Table


def terminal() -> Console:
    """The terminal; into a pipe or a file, lines as long as they need to be."""
    console = Console()
    return console if console.is_terminal else Console(width=240)


def print_line(line: str) -> None:
    """Print a line as it is."""
    Console(soft_wrap=True).out(line, highlight=False)


def print_json(value: object) -> None:
    """Print a value for machines."""
    print_line(json.dumps(value))


def print_table(table: Table) -> None:
    """Print a table: whole lines where nobody looks at a terminal."""
    terminal().print(table)
