"""`tinker-actors environments`: what is shipped."""

from __future__ import annotations

import inspect

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tinker_actors.environments import load_environment, shipped_environments


def list_environments() -> int:
    """Print every shipped environment with its seats and first line of documentation."""
    table = Table.grid(padding=(0, 3))
    for name in shipped_environments():
        cls = load_environment(name).environment
        summary = (inspect.getdoc(cls) or "").partition("\n")[0]
        table.add_row(Text(name, style="bold"), Text(", ".join(cls.seats), style="dim"), Text(summary))
    Console().print(table)
    return 0
