"""Finding the meshes that run on this host, and asking them what they do. See `window`."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinker_actors.actors.description import ActorDescription, LinkDescription, MeshDescription, NodeDescription
from tinker_actors.actors.folder import PREFIX, where
from tinker_actors.actors.window import RECORD, REQUEST, SOCKET
from tinker_actors.errors import RunError

PATIENCE = 5.0  # seconds for a mesh to answer


@dataclass(frozen=True, kw_only=True, slots=True)
class RunningMesh:
    """A mesh of this user on this host, as its record describes it."""

    name: str
    pid: int
    nodes: int
    started: float  # Unix time
    command: tuple[str, ...]
    folder: Path


def running_meshes() -> list[RunningMesh]:
    """Those that run now, oldest first. A mesh with another temporary folder than this process's isn't found."""
    found: list[RunningMesh] = []
    for folder in where().glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            mesh = _read(folder)
            _connect(mesh, 1.0).close()
            found.append(mesh)
    return sorted(found, key=lambda mesh: mesh.started)


def choose(which: str | None) -> RunningMesh:
    """The mesh with this process id (its own or a name) or, without one, the only mesh there is.

    Raises:
        RunError: there is none, or not exactly one.
    """
    meshes = running_meshes()
    if not meshes:
        raise RunError("no mesh of this user runs on this host (or its TMPDIR is another one)")
    chosen = [mesh for mesh in meshes if which is None or which in (str(mesh.pid), mesh.name)]
    if len(chosen) == 1:
        return chosen[0]
    listed = "\n".join(
        f"  {mesh.pid}  {mesh.name}  {mesh.nodes} node{'s' * (mesh.nodes != 1)}" for mesh in chosen or meshes
    )
    if which is None:
        raise RunError(f"several meshes run here; name one of them, or its process id:\n{listed}")
    raise RunError(f"{'several meshes are' if chosen else 'no mesh is'} called {which}; there are:\n{listed}")


def fetch(mesh: RunningMesh) -> MeshDescription:
    """What the mesh says of itself.

    Raises:
        RunError: it has ended, or did not answer in time, as when its event loop is blocked.
    """
    try:
        with _connect(mesh, PATIENCE) as connection:
            connection.sendall(REQUEST)
            with connection.makefile("rb") as answer:
                data = answer.readline()
    except TimeoutError:
        raise RunError(
            f"{mesh.name} (pid {mesh.pid}) did not answer within {PATIENCE:g} s: its event loop may be blocked"
        ) from None
    except OSError as error:
        raise RunError(f"{mesh.name} (pid {mesh.pid}) can't be reached: {error}") from None
    if not data:
        raise RunError(f"{mesh.name} (pid {mesh.pid}) has ended")
    return _description(json.loads(data))


def _read(folder: Path) -> RunningMesh:
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise ValueError(f"{folder} is no private folder of this user")
    record: dict[str, Any] = json.loads((folder / RECORD).read_text())
    return RunningMesh(
        name=str(record["name"]),
        pid=int(record["pid"]),
        nodes=int(record["nodes"]),
        started=float(record["started"]),
        command=tuple(map(str, record["command"])),
        folder=folder,
    )


def _connect(mesh: RunningMesh, timeout: float) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout)
        connection.connect(str(mesh.folder / SOCKET))
    except BaseException:  # whatever it was, the connection is not leaked
        connection.close()
        raise
    return connection


def _description(plain: dict[str, Any]) -> MeshDescription:
    nodes: list[NodeDescription] = []
    node: dict[str, Any]
    for node in plain["nodes"]:
        links = tuple(LinkDescription(**link) for link in node.pop("links"))
        nodes.append(NodeDescription(**node, links=links))
    actors: list[ActorDescription] = []
    actor: dict[str, Any]
    for actor in plain["actors"]:
        children = tuple(actor.pop("children"))
        actors.append(ActorDescription(**actor, children=children))
    return MeshDescription(
        name=plain["name"], pid=plain["pid"], time=plain["time"], nodes=tuple(nodes), actors=tuple(actors)
    )
