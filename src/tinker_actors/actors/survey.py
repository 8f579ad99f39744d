"""What a node knows of itself and its actors, and node 0's putting together of what all of them know."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from tinker_actors.actors.control import SYSTEM_IDS
from tinker_actors.actors.description import ActorDescription, LinkDescription, MeshDescription, NodeDescription
from tinker_actors.errors import ActorError

if TYPE_CHECKING:
    from tinker_actors.actors.cell import Cell
    from tinker_actors.actors.directory import Directory, Entry
    from tinker_actors.actors.node import Node
    from tinker_actors.actors.peer import Peer

ANSWER = 2.0  # seconds that a node has to answer
CHUNK = 500  # actors looked at before the loop's other work gets its turn
LOOK_APART = 0.5  # seconds between two looks that a rate is taken from, at least

Survey = list[Any]
"""[pid, host, incarnation, up since, lag, bad messages, dead letters, rss, links, actors], lists all through: an actor
is [id, state, depth, handled, rate, p50, p99], a link [peer, up, messages, bytes, unanswered]."""


class Surveyor:
    """Looks at one node. Rates come from what it remembers of earlier looks."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._up_since = time.time()
        self._latest: tuple[float, dict[int, int]] = (node.loop.time(), {})
        self._base = self._latest

    async def look(self) -> Survey:
        """What there is to say of this node and its actors now."""
        import psutil

        node = self._node
        now = node.loop.time()
        if now - self._latest[0] >= LOOK_APART:
            self._base = self._latest
        base_time, base = self._base
        seconds = max(now - base_time, 1e-3)
        counts: dict[int, int] = {}
        actors: list[list[Any]] = []
        cells = [cell for cell in node.cells.values() if cell.id >= SYSTEM_IDS]
        for number, cell in enumerate(cells, 1):
            counts[cell.id] = handled = cell.served + cell.begun - cell.in_progress
            rate = (handled - base.get(cell.id, 0)) / seconds
            actors.append([cell.id, cell.state.name.lower(), cell.depth, handled, rate, *_quantiles(cell)])
            if number % CHUNK == 0:
                await asyncio.sleep(0)
        if now - self._latest[0] >= LOOK_APART or not self._latest[1]:
            self._latest = (now, counts)
        exchange = node.exchange
        return [
            os.getpid(),
            socket.gethostname(),
            node.incarnation,
            self._up_since,
            node.pulse.lag,
            exchange.bad_messages,
            node.dead_letters,
            psutil.Process().memory_info().rss,
            _links(node),
            actors,
        ]


def _links(node: Node) -> list[list[Any]]:
    parked: dict[int, list[int]] = {}
    for target in node.exchange.busy:
        messages, size = target.parked
        sums = parked.setdefault(target.address.node, [0, 0])
        sums[0] += messages
        sums[1] += size
    unanswered = Counter(pending.target.address.node for pending in node.exchange.pending.values())
    links: list[list[Any]] = []
    for peer in node.exchange.peers():
        messages, size = peer.link.waiting if peer.link is not None else (0, 0)
        more_messages, more_size = parked.get(peer.index, (0, 0))
        backlog = sum(len(data) + sum(frame.nbytes for frame in frames) for _, data, frames in peer.backlog.values())
        messages += more_messages + len(peer.backlog)
        links.append([peer.index, peer.is_open, messages, size + more_size + backlog, unanswered[peer.index]])
    return links


def _quantiles(cell: Cell) -> tuple[float | None, float | None]:
    return (None, None) if cell.times is None else (cell.times.quantile(0.5), cell.times.quantile(0.99))


async def describe(directory: Directory, name: str, pids: dict[int, int]) -> MeshDescription:
    """The whole mesh, from its node 0. Nodes that don't answer within `ANSWER` seconds are described as silent."""
    node = directory.node
    peers = {peer.index: peer for peer in node.exchange.peers()}
    indices = [0, *sorted(peers)]
    surveys = await asyncio.gather(*(_ask(directory, index) for index in indices))
    pids = {0: os.getpid(), **pids}
    nodes = [
        _described(survey, index) if survey is not None else _without_answer(peers[index], pids.get(index))
        for index, survey in zip(indices, surveys, strict=True)
    ]
    rows = {row[0]: row for survey in surveys if survey is not None for row in survey[-1]}
    return MeshDescription(
        name=name,
        pid=os.getpid(),
        time=time.time(),
        nodes=tuple(nodes),
        actors=await _actors(list(directory.entries.values()), rows),
    )


async def _ask(directory: Directory, index: int) -> Survey | None:
    if index == 0:
        return await directory.node.surveyor.look()
    if index not in directory.agents or not directory.node.exchange.is_open(index):
        return None
    agent: Any = directory.agents[index].options(timeout=ANSWER)
    try:
        return cast(Survey, await agent.survey())
    except (ActorError, TimeoutError):
        return None


def _without_answer(peer: Peer, pid: int | None) -> NodeDescription:
    return NodeDescription(
        index=peer.index,
        pid=pid if peer.is_open else None,
        host="" if pid is None else socket.gethostname(),
        incarnation=peer.incarnation,
        state="silent" if peer.is_open else "down",
    )


def _described(survey: Survey, index: int) -> NodeDescription:
    pid, host, incarnation, up_since, lag, bad, dead_letters, rss, links, _ = survey
    return NodeDescription(
        index=index,
        pid=pid,
        host=host,
        incarnation=incarnation,
        state="up",
        up_since=up_since,
        loop_lag=lag,
        bad_messages=bad,
        dead_letters=dead_letters,
        rss=rss,
        links=tuple(
            LinkDescription(peer=peer, up=up, messages=messages, bytes=size, unanswered=unanswered)
            for peer, up, messages, size, unanswered in links
        ),
    )


async def _actors(entries: Iterable[Entry], rows: dict[int, list[Any]]) -> tuple[ActorDescription, ...]:
    actors: list[ActorDescription] = []
    for number, entry in enumerate(entries, 1):
        address = entry.ref.address
        _, state, depth, handled, rate, p50, p99 = rows.get(address.id) or (0, "unknown", None, None, None, None, None)
        actors.append(
            ActorDescription(
                id=address.id,
                name=address.name,
                cls=address.kind,
                node=address.node,
                state=state,
                mailbox=depth,
                mailbox_bound=address.mailbox,
                handled=handled,
                rate=rate,
                p50=p50,
                p99=p99,
                restarts=entry.incarnation - 1,
                children=tuple(sorted(entry.children)),
            )
        )
        if number % CHUNK == 0:
            await asyncio.sleep(0)
    return tuple(actors)
