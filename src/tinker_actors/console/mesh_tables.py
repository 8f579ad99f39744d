"""A mesh's description as tables."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tinker_actors.actors import ActorDescription, MeshDescription, NodeDescription

_STATE_STYLES = {"up": "green", "running": "", "silent": "yellow", "down": "red", "unknown": "yellow"}


def draw_mesh(mesh: MeshDescription, *, sort: str, rows: int | None) -> RenderableType:
    """Nodes, then at most `rows` actors, the busiest (by `sort`) first."""
    actors = sorted_actors(mesh.actors, sort)
    shown = actors if rows is None else actors[: max(rows, 0)]
    parts: list[RenderableType] = [_nodes(mesh), Text(), _actors(shown)]
    if len(shown) < len(actors):
        parts.append(Text(f"... {len(actors) - len(shown)} more actors", style="dim"))
    return Group(*parts)


def headline(mesh: MeshDescription) -> str:
    """The mesh in one line."""
    rates = [actor.rate for actor in mesh.actors if actor.rate is not None]
    return f"{mesh.name} (pid {mesh.pid})  {len(mesh.nodes)} nodes  {len(mesh.actors)} actors  {sum(rates):,.0f} msg/s"


def sorted_actors(actors: Sequence[ActorDescription], by: str) -> list[ActorDescription]:
    """Largest first, by name alphabetically; what is unknown stands last."""
    if by == "name":
        return sorted(actors, key=lambda actor: actor.name)

    def key(actor: ActorDescription) -> float:
        value: float | None = getattr(actor, by)
        return -1.0 if value is None else value

    return sorted(actors, key=key, reverse=True)


def _nodes(mesh: MeshDescription) -> Table:
    table = _table("NODE", "PID", "HOST", "STATE", "UP", "LAG", "RSS", "QUEUED", "BAD", "DEAD", "ACTORS")
    for node in mesh.nodes:
        count = sum(actor.node == node.index for actor in mesh.actors)
        table.add_row(
            str(node.index),
            _number(node.pid),
            node.host,
            Text(node.state + ("" if node.incarnation == 1 else f" #{node.incarnation}"), _STATE_STYLES[node.state]),
            "-" if node.up_since is None else _span(max(0.0, time.time() - node.up_since)),
            _span(node.loop_lag),
            _size(node.rss),
            _queued(node),
            _number(node.bad_messages),
            _number(node.dead_letters),
            str(count),
        )
    return table


def _actors(actors: Sequence[ActorDescription]) -> Table:
    table = _table(
        "ACTOR", "CLASS", "NODE", "STATE", "MAILBOX", "HANDLED", "RATE", "P50", "P99", "RESTARTS", "CHILDREN"
    )
    for actor in actors:
        table.add_row(
            actor.name,
            actor.cls,
            str(actor.node),
            Text(actor.state, _STATE_STYLES.get(actor.state, "yellow")),
            f"{_number(actor.mailbox)}/{actor.mailbox_bound}",
            _number(actor.handled),
            "-" if actor.rate is None else f"{actor.rate:,.1f}",
            _span(actor.p50),
            _span(actor.p99),
            str(actor.restarts),
            str(len(actor.children)),
        )
    return table


def _table(*columns: str) -> Table:
    table = Table.grid(padding=(0, 1))
    words = {"ACTOR", "CLASS", "HOST", "STATE"}
    for column in columns:
        table.add_column(justify="left" if column in words else "right", no_wrap=True)
    table.add_row(*[Text(column, style="bold") for column in columns])
    return table


def _queued(node: NodeDescription) -> str:
    if node.state != "up":
        return "-"
    messages = sum(link.messages for link in node.links)
    return f"{messages} ({_size(sum(link.bytes for link in node.links))})" if messages else "0"


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _size(value: int | None) -> str:
    return "-" if value is None else f"{value / 1e6:,.1f} MB"


def _span(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
