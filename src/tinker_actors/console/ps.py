"""`tinker-actors ps`: what the meshes of this host do, once."""

from __future__ import annotations

import dataclasses
import time

from rich.text import Text

from tinker_actors.actors.attach import RunningMesh, choose, fetch, running_meshes
from tinker_actors.console.bounds import check_number
from tinker_actors.console.mesh_tables import draw_mesh, headline
from tinker_actors.console.printing import print_json, terminal
from tinker_actors.errors import RunError

LOOK_APART = 0.5  # seconds between the two looks that rates are taken from


def list_actors(which: str | None, *, as_json: bool, sort: str, rows: int | None) -> int:
    """Print the mesh that `which` (a process id or a name) chooses, or the only one, or a list of all.

    Raises:
        RunError: there is no such mesh, or it does not answer.
        ConfigError: fewer rows than one are asked for.
    """
    check_number("--rows", rows, least=1)
    meshes = running_meshes()
    if which is None and len(meshes) != 1:
        _list(meshes, as_json=as_json)
        return 0
    mesh = choose(which)
    fetch(mesh)
    time.sleep(LOOK_APART)
    description = fetch(mesh)
    if as_json:
        print_json([dataclasses.asdict(description)])
        return 0
    console = terminal()
    console.print(Text(headline(description), style="bold"))
    console.print(draw_mesh(description, sort=sort, rows=rows), soft_wrap=not console.is_terminal)
    return 0


def _list(meshes: list[RunningMesh], *, as_json: bool) -> None:
    """Every mesh in a line or, for machines, all that each has to say."""
    if as_json:
        described: list[dict[str, object]] = []
        for mesh in meshes:
            try:
                described.append(dataclasses.asdict(fetch(mesh)))
            except RunError as error:
                described.append({"name": mesh.name, "pid": mesh.pid, "error": str(error)})
        print_json(described)
        return
    console = terminal()
    if not meshes:
        console.print("no mesh of this user runs on this host")
        return
    for mesh in meshes:
        command = " ".join(mesh.command)
        nodes = "1 node" if mesh.nodes == 1 else f"{mesh.nodes} nodes"
        line = f"{mesh.pid:>8}  {mesh.name}  {nodes}  {command}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print("choose one by its process id or name: tinker-actors ps NAME", style="dim")
