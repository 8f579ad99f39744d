"""Asks that wait for each other in separate chains: found and refused, and nothing else is."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ring_zoo import Waiter

from tinker_actors.actors import AskCycleError, Mesh
from tinker_actors.actors.cycles import CONFIRM, SEARCH, Hop, Walk, judge
from tinker_actors.actors.errors import CodecError

MESH = {"ask_cycle": 0.05}


async def waiters(mesh: Mesh, names: str) -> list[Waiter]:
    """One for each letter, by turns here and on the other node."""
    return [await mesh.spawn(Waiter, name=name, node=None if index % 2 else 0) for index, name in enumerate(names)]


async def begin(actors: list[Waiter], *asks: Any) -> list[asyncio.Task[Any]]:
    """Have every actor's handler begun before any of them asks on."""
    tasks = [asyncio.ensure_future(ask) for ask in asks]
    for actor in actors:
        await actor.wait_entered()
    for actor in actors:
        actor.tell.open()  # all at once: one that has asked on makes those that come later wait behind its ask
    return tasks


def here(actor: Any) -> Waiter:
    """The actor itself, which is in this process."""
    return actor.target.instance


def finder(mesh: Any) -> Any:
    return mesh._node.cycles


def look(mesh: Mesh, sweeps: int = 40) -> None:
    """What several seconds of sweeps would do, at once."""
    for _ in range(sweeps):
        finder(mesh).look()


async def test_of_two_asks_that_cross_one_is_refused_and_the_other_answered(mesh: Mesh) -> None:
    a, b = actors = await waiters(mesh, "ab")
    outcomes = await asyncio.gather(*await begin(actors, a.cross(b), b.cross(a)), return_exceptions=True)
    assert outcomes[0] == "pong"
    assert isinstance(outcomes[1], AskCycleError)
    assert outcomes[1].cycle == ("b.cross", "a.cross", "b.cross")
    assert "a.ping waits behind a.cross, b.ping waits behind b.cross" in str(outcomes[1])
    assert [await actor.ping() for actor in actors] == ["pong", "pong"]
    assert [await actor.mailbox() for actor in actors] == [0, 0]


async def test_a_longer_ring_names_all_its_actors_also_those_that_serve_one_of_the_asks(mesh: Mesh) -> None:
    a, b, c, d, e = actors = await waiters(mesh, "abcde")
    asks = a.cross(b), b.through_beside(e, c), c.through(d, a)
    tasks = await begin([a, b, c], *asks)
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [outcome for outcome in outcomes if outcome != "pong"] == [outcomes[2]]
    assert outcomes[2].cycle == ("c.through", "d.relay", "a.cross", "b.through_beside", "e.relay_beside", "c.through")
    assert [await actor.ping() for actor in actors] == ["pong"] * 5


@pytest.mark.parametrize("first", ["a", "b"])
async def test_the_ask_whose_deadline_would_pass_first_is_refused(mesh: Mesh, first: str) -> None:
    a, b = actors = await waiters(mesh, "ab")
    seconds = {"a": 30.0, "b": 30.0, first: 20.0}
    tasks = await begin(actors, a.cross(b, seconds["a"]), b.cross(a, seconds["b"]))
    outcomes = dict(zip("ab", await asyncio.gather(*tasks, return_exceptions=True), strict=True))
    assert isinstance(outcomes.pop(first), AskCycleError)
    assert list(outcomes.values()) == ["pong"]


async def test_a_hook_that_waits_is_part_of_a_cycle(mesh: Mesh) -> None:
    a = await mesh.spawn(Waiter, name="a", node=0)
    with pytest.raises(AskCycleError, match=r"b\.on_start -> a\.meet -> b\.on_start"):
        await mesh.spawn(Waiter, a, name="b")
    assert "asks wait for each other" in await a.last_met()


async def test_what_races_an_ask_or_makes_several_is_not_refused() -> None:
    async with Mesh(ask_cycle=None) as mesh:
        a, b, c, d, switch = await waiters(mesh, "abcde")
        asks = a.race(b), b.cross(a), c.both(a, d), d.hold(switch)
        racing, crossing, gathering, held = await begin([a, b, c], *asks)
        await turns(3)
        assert [len(each.target.queue) for each in (a, b, d)] == [2, 1, 1]
        look(mesh)
        here(a).free.set()
        assert await racing == "free"
        assert await crossing == "pong"
        await switch.open()
        assert await held == "held"
        assert await gathering == ["pong", "pong"]


async def test_waiting_long_behind_a_handler_that_waits_long_is_no_cycle(mesh: Mesh) -> None:
    a, b, c, switch = await waiters(mesh, "abcd")
    tasks = await begin([a, b], a.cross(b), b.cross(c), c.hold(switch))
    behind = asyncio.ensure_future(a.ping())
    done, _ = await asyncio.wait([*tasks, behind], timeout=0.3)
    assert not done
    await switch.open()
    assert await asyncio.gather(*tasks, behind) == ["pong", "pong", "held", "pong"]


async def test_crossing_asks_of_concurrent_methods_are_answered(mesh: Mesh) -> None:
    a, b, c, switch = await waiters(mesh, "abcd")
    tasks = await begin([a, b], a.through_beside(b, c), b.through_beside(a, c), c.hold(switch))
    done, _ = await asyncio.wait(tasks, timeout=0.3)
    assert not done
    await switch.open()
    assert await asyncio.gather(*tasks) == ["pong", "pong", "held"]


async def test_a_concurrent_ask_that_waits_for_room_is_answered() -> None:
    async with Mesh(ask_cycle=None) as mesh:
        a = await mesh.spawn(Waiter, mailbox=1)
        b, switch = await waiters(mesh, "bs")
        fills = asyncio.ensure_future(a.hold_beside(switch))
        tasks = await begin([], a.cross(b), b.through_beside(a, switch))
        await turns(3)
        here(a).gate.set()
        here(b).gate.set()
        await turns(3)
        assert [len(each.target.queue) for each in (a, b)] == [1, 1]
        look(mesh)
        await switch.open()
        assert await asyncio.gather(fills, *tasks) == [None, "pong", "pong"]


async def test_an_ask_that_is_given_up_while_it_is_walked_leaves_no_cycle() -> None:
    async with Mesh(listen="tcp://127.0.0.1:0", ask_cycle=None) as mesh, Mesh.join(mesh.url or "") as joined:
        a, b = actors = [await mesh.spawn(Waiter, name=name, node=node) for name, node in (("a", 1), ("b", 0))]
        tasks = await begin(actors, a.settle(b), b.cross(a))
        nodes = joined._node, mesh._node
        there, arrived = finder(joined), finder(joined).arrived
        walks: list[int] = []

        def arrive(peer: Any, ident: int, parts: list[Any]) -> None:
            walks.append(parts[0])
            arrived(peer, ident, parts)
            if walks == [SEARCH]:
                joined._node.cells[a.address.id].instance.call_off()

        there.close()
        there.arrived = arrive
        while not all(node.cells[each.address.id].queue for each, node in zip(actors, nodes, strict=True)):
            await turns(1)
        while not walks:
            look(mesh, 1)
            await turns(1)
        assert await asyncio.gather(*tasks) == ["gave up", "pong"]
        while CONFIRM not in walks:
            await turns(1)


async def turns(count: int) -> None:
    """Let the loop turn so often."""
    for _ in range(count):
        await asyncio.sleep(0)


KINDS = ("hold", "cross_or_say", "both", "race")


@given(
    st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 7), st.integers(0, 7)), min_size=2, max_size=8),
)
@settings(max_examples=40, deadline=None)
def test_in_any_graph_of_waits_each_cycle_loses_one_ask_and_nothing_else_does(
    graph: list[tuple[str, int, int]],
) -> None:
    asyncio.run(_check_graph(graph))


async def _check_graph(graph: list[tuple[str, int, int]]) -> None:
    size = len(graph)
    # Nobody asks itself: that is refused when it is posted.
    others = [[(i + 1 + each % (size - 1)) % size for each in pair] for i, (_, *pair) in enumerate(graph)]
    next_of = {i: others[i][0] for i, (kind, *_) in enumerate(graph) if kind == "cross_or_say"}
    async with Mesh(ask_cycle=None, stop_timeout=0.1, observe=False, blocked_loop=None) as mesh:
        switch = await mesh.spawn(Waiter)
        actors = await waiters(mesh, "abcdefgh"[:size])
        asks: list[Any] = []
        for i, (kind, *_) in enumerate(graph):
            targets = [switch] if kind == "hold" else [actors[k] for k in others[i]]
            asks.append(getattr(actors[i], kind)(*targets[: 1 if kind in ("hold", "cross_or_say") else 2]))
        tasks = [asyncio.ensure_future(ask) for ask in asks]
        for actor in actors:
            await actor.wait_entered()
        for actor in actors:
            here(actor).gate.set()
        await turns(2)
        look(mesh)
        await switch.open()
        for actor in actors:
            here(actor).free.set()
        expected = {max(cycle) for cycle in cycles_of(next_of)}
        stuck = [tasks[i] for i in stuck_in(graph, others, expected)]
        await asyncio.gather(*(task for task in tasks if task not in stuck))
        refused = {i for i, task in enumerate(tasks) if task.done() and task.result() == "refused"}
        assert refused == expected
        for task in stuck:
            task.cancel()
        await asyncio.gather(*stuck, return_exceptions=True)


def cycles_of(next_of: dict[int, int]) -> list[list[int]]:
    """The cycles of a graph in which nobody waits for more than one."""
    cycles: list[list[int]] = []
    for start in next_of:
        path = [start]
        while path[-1] in next_of and next_of[path[-1]] not in path:
            path.append(next_of[path[-1]])
        if next_of.get(path[-1]) == start == min(path):
            cycles.append(path)
    return cycles


def stuck_in(graph: list[tuple[str, int, int]], others: list[list[int]], refused: set[int]) -> set[int]:
    """Who still waits when everything that can end has: whoever waits, with others, for itself."""
    stuck = set(range(len(graph)))
    while True:
        free = {
            i
            for i in stuck
            if i in refused
            or graph[i][0] in ("hold", "race")
            or not stuck & set(others[i][: 1 if graph[i][0] == "cross_or_say" else 2])
        }
        if not free:
            return stuck
        stuck -= free


def test_a_verdict_names_the_cycle_from_the_refused_ask_on() -> None:
    path = [Hop(3, 7, "c.x", "c.in", None), Hop(1, 2, "a.y", "a.in", 2.0), Hop(2, 9, "b.z", None, 3.0)]
    verdict = judge(path)
    assert verdict[:2] == (1, 2)
    assert verdict.steps == ("a.y", "b.z", "c.x", "a.y")
    assert verdict.text.endswith("(c.in waits behind c.x, a.in waits behind a.y)")


@pytest.mark.parametrize("parts", [[0, [[1, 1, "a", None, None]], None], [SEARCH, [], None]])
def test_a_walk_that_means_nothing_is_refused(parts: list[Any]) -> None:
    with pytest.raises(CodecError):
        Walk.from_parts(parts)


def test_a_grace_that_is_none_is_named() -> None:
    with pytest.raises(ValueError, match=r"ask_cycle .* got 0"):
        Mesh(ask_cycle=0)
