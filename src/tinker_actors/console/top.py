"""`tinker-actors top`: what a mesh does, live."""

from __future__ import annotations

import contextlib
import time

from rich.console import Console
from rich.live import Live
from rich.panel import Panel

from tinker_actors.actors.attach import choose, fetch
from tinker_actors.console.bounds import check_number
from tinker_actors.console.mesh_tables import draw_mesh, headline
from tinker_actors.coordinator.limits import check_seconds
from tinker_actors.errors import RunError

_AROUND = 10  # lines of the screen that are not actors, besides one a node


def watch_actors(which: str | None, *, interval: float, sort: str, count: int | None) -> int:
    """Redraw every `interval` seconds until Ctrl-C or the mesh's end, `count` times at most.

    Raises:
        RunError: there is no such mesh.
        ConfigError: an option is out of bounds.
    """
    check_seconds("--interval", interval)
    check_number("--count", count, least=1)
    mesh = choose(which)
    console = Console()
    drawn = 0
    with contextlib.suppress(KeyboardInterrupt), Live(console=console, auto_refresh=False, screen=False) as live:
        while count is None or drawn < count:
            if drawn:
                time.sleep(interval)
            try:
                description = fetch(mesh)
            except RunError as error:
                live.console.print(str(error), markup=False, highlight=False)
                return 0 if drawn else 2
            rows = console.height - _AROUND - len(description.nodes)
            title = f"{headline(description)}  {time.strftime('%H:%M:%S', time.localtime(description.time))}"
            body = draw_mesh(description, sort=sort, rows=rows if console.is_terminal else None)
            live.update(Panel(body, title=title, title_align="left", subtitle="Ctrl-C to leave"), refresh=True)
            drawn += 1
    return 0
