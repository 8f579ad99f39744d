"""Child processes: death, respawn, placement, peers, and what is left behind."""

import asyncio
import gc
import os
import signal
import stat
import time
from pathlib import Path
from typing import Any

import pytest
from company_zoo import DiesTwice, Greeter
from late_asks import ask_late
from zoo import Chain, Counter, Echo, Fragile, Log, Parent, Stubborn

from tinker_actors.actors import (
    ActorDiedError,
    ActorStoppedError,
    CodecError,
    Mesh,
    NodeDiedError,
    Restarted,
    RestartPolicy,
    SpawnError,
    Terminated,
    UnroutableError,
)
from tinker_actors.actors.cell import Cell

REVIVED = RestartPolicy.on_failure(backoff=0.0)


async def test_actors_are_placed_on_the_children_in_turn_or_where_they_are_told(pair: Mesh) -> None:
    pids = [await (await pair.spawn(Counter)).pid() for _ in range(4)]
    assert pids == [pair.pids[1], pair.pids[2]] * 2
    assert await (await pair.spawn(Counter, node=0)).pid() == os.getpid()
    assert await (await pair.spawn(Counter, node=2)).pid() == pair.pids[2]


async def test_children_talk_to_each_other_and_to_node_0(pair: Mesh) -> None:
    a, b, c = [await pair.spawn(Chain, name=f"n{node}", node=node) for node in (1, 2, 0)]
    assert await a.through([b, c, await pair.spawn(Chain, node=1)]) == "end"
    log = await pair.spawn(Log, node=2)
    assert await a.through([]) == "end"
    await ask_late(lambda seconds: a.options(timeout=seconds).hold_other(log), log, "nested begins")
    await log.wait_for("nested cancelled")


async def test_an_actor_in_a_child_spawns_watches_and_finds_actors_anywhere(pair: Mesh) -> None:
    parent = await pair.spawn(Parent, node=1)
    for node in (0, 1, 2):
        child = await parent.spawn(node, name=f"child-{node}")
        assert pair.get(f"child-{node}") == child
        assert await parent.lookup(f"child-{node}") == child
        watching = asyncio.create_task(parent.watch_child())
        child.tell.breaks()
        assert (await watching).startswith("Terminated: ActorFailure")


async def test_the_death_of_a_node_costs_in_proportion_to_its_actors() -> None:
    async def seconds(count: int) -> float:
        """Of processor time, from the kill until an actor's calls fail."""
        async with Mesh(nodes=2) as mesh:
            counters = [await mesh.spawn(Counter, node=1) for _ in range(count)]
            gc.disable()  # how long a collection takes is a matter of all that the process holds
            try:
                began = time.process_time()
                os.kill(mesh.pids[1], signal.SIGKILL)
                outcome: Any = None
                while not isinstance(outcome, NodeDiedError | ActorDiedError):
                    (outcome,) = await asyncio.gather(counters[-1].pid(), return_exceptions=True)
                return time.process_time() - began
            finally:
                gc.enable()

    few, many = await seconds(500), await seconds(4000)
    assert many < 24 * few  # in proportion: 8


async def test_a_killed_node_fails_its_calls_at_once_with_the_end_of_its_log(pair: Mesh) -> None:
    log = await pair.spawn(Log, node=1)
    fragile = await pair.spawn(Fragile, node=1)
    other = await pair.spawn(Counter, node=2)
    held = asyncio.create_task(log.hold())
    await log.wait_for("hold begins")
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(NodeDiedError, match="SIGKILL") as caught:
        await fragile.die()
    assert "the last words of this process" in caught.value.log_tail
    with pytest.raises(NodeDiedError):
        await held
    assert loop.time() - began < 10.0
    assert await other.add(1) == 1


async def test_a_killed_nodes_actors_come_back_under_the_same_refs(pair: Mesh) -> None:
    counter = await pair.spawn(Counter, 40, node=1, name="phoenix", restart=REVIVED)
    mortal = await pair.spawn(Counter, node=1)
    echo = await pair.spawn(Chain, node=2)
    assert await counter.add(2) == 42
    events, end = pair.watch(counter), pair.watch(mortal)
    old = pair.pids[1]
    os.kill(old, signal.SIGKILL)
    event = await anext(events)
    assert isinstance(event, Restarted)
    assert event.incarnation == 2
    assert isinstance(event.reason, NodeDiedError)
    assert isinstance(await anext(end), Terminated)
    assert await counter.add(1) == 41
    assert await pair.get("phoenix").pid() == pair.pids[1] != old
    assert await echo.through([]) == "end"
    with pytest.raises(ActorDiedError):
        await mortal.add(1)


async def test_asks_made_while_a_node_comes_back_wait_for_it(pair: Mesh) -> None:
    counter = await pair.spawn(Counter, node=1, restart=REVIVED)
    chain = await pair.spawn(Chain, node=1, restart=REVIVED)
    asker = await pair.spawn(Chain, node=2)
    events = pair.watch(counter)
    with pytest.raises(NodeDiedError):
        await asyncio.gather(counter.options(timeout=30).add(1), _kill(pair.pids[1]), _never(counter))
    assert await counter.add(1) == 1
    assert await asker.through([chain]) == "end"
    assert isinstance(await anext(events), Restarted)


async def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


async def _never(counter: Any) -> None:
    async for _ in counter.stream.count_to(10**9):
        pass


async def test_an_ask_that_is_cancelled_while_its_node_comes_back_is_never_served() -> None:
    async with Mesh(nodes=2) as mesh:
        log = await mesh.spawn(Log, restart=REVIVED)
        os.kill(mesh.pids[1], signal.SIGKILL)
        with pytest.raises(NodeDiedError):
            await log.hold()
        late = [asyncio.create_task(log.note(what)) for what in ("cancelled", "kept")]
        await asyncio.sleep(0)
        late[0].cancel()
        await late[1]
        assert await log.read() == ["kept"]


@pytest.mark.parametrize("how", ["answer", "raises", "items", "told"])
async def test_what_is_answered_after_its_sender_died_never_reaches_who_comes_after_it(
    pair: Mesh, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its numbers begin anew: an answer to the one before might pass for the answer to something else."""
    log = await pair.spawn(Log, node=0)
    stubborn = await pair.spawn(Stubborn, log, node=0)
    caller = await pair.spawn(Stubborn, log, node=1, restart=REVIVED)
    events = pair.watch(caller)
    call = asyncio.create_task(caller.use(stubborn, how))
    await log.wait_for("begins")
    os.kill(pair.pids[1], signal.SIGKILL)
    assert isinstance(await anext(events), Restarted)
    assert call.done()
    link = pair._open()[1].exchange.by_index[1].link
    assert link is not None
    served = stubborn.target
    assert isinstance(served, Cell)
    running = list(served.concurrent.values())
    assert len(running) == 1
    sent: list[bytes] = []
    with monkeypatch.context() as patch:
        patch.setattr(link, "put", lambda data, *_, **__: sent.append(data))
        await stubborn.open()
        await asyncio.wait(running)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert not sent


async def test_calls_between_children_fail_when_one_is_killed(pair: Mesh) -> None:
    log = await pair.spawn(Log, node=1)
    chain = await pair.spawn(Chain, node=2)
    held = asyncio.create_task(chain.hold_other(log))
    await log.wait_for("nested begins")
    os.kill(pair.pids[1], signal.SIGKILL)
    with pytest.raises(NodeDiedError, match="SIGKILL"):
        await held


async def test_a_dead_askers_handlers_are_cancelled(pair: Mesh) -> None:
    log = await pair.spawn(Log, node=2)
    chain = await pair.spawn(Chain, node=1)
    held = asyncio.create_task(chain.hold_other(log))
    await log.wait_for("nested begins")
    os.kill(pair.pids[1], signal.SIGKILL)
    await asyncio.wait([held])
    await log.wait_for("nested cancelled")
    assert await log.read() == ["nested begins", "nested cancelled"]


async def test_actors_that_hold_each_others_refs_come_back_together() -> None:
    async with Mesh(nodes=2) as mesh:
        first = await mesh.spawn(Log, restart=REVIVED)
        second = await mesh.spawn(Fragile, first, restart=REVIVED)
        events = mesh.watch(second)
        os.kill(mesh.pids[1], signal.SIGKILL)
        await anext(events)
        assert await first.read() == ["fragile started"]


async def test_a_revived_actor_may_find_and_ask_others_while_it_starts(pair: Mesh) -> None:
    log = await pair.spawn(Log, node=2, name="log")
    greeter = await pair.spawn(Greeter, node=1, restart=REVIVED)
    os.kill(pair.pids[1], signal.SIGKILL)
    await log.wait_for("greeted", 2)
    assert await greeter.pid() == pair.pids[1]


async def test_a_node_that_dies_again_while_its_actors_start_comes_back_once_more(tmp_path: Path) -> None:
    async with Mesh(nodes=2) as mesh:
        actor = await mesh.spawn(DiesTwice, str(tmp_path / "starts"), restart=REVIVED)
        counter = await mesh.spawn(Counter, restart=REVIVED)
        events = mesh.watch(actor)
        os.kill(mesh.pids[1], signal.SIGKILL)
        assert isinstance(await anext(events), Restarted)
        assert await actor.pid() == mesh.pids[1]
        assert await counter.add(1) == 1
        assert (tmp_path / "starts").read_text() == "xxx"


async def test_an_actor_can_be_stopped_while_its_node_comes_back(pair: Mesh) -> None:
    counter = await pair.spawn(Counter, node=1, restart=REVIVED)
    events = pair.watch(counter)
    os.kill(pair.pids[1], signal.SIGKILL)
    await pair.stop(counter)
    assert isinstance([event async for event in events][-1], Terminated)
    with pytest.raises(ActorStoppedError):
        await counter.add(1)


async def test_a_mesh_may_end_while_a_node_comes_back() -> None:
    loop = asyncio.get_running_loop()
    async with Mesh(nodes=2, stop_timeout=30.0) as mesh:
        counter = await mesh.spawn(Counter, restart=REVIVED)
        os.kill(mesh.pids[1], signal.SIGKILL)
        with pytest.raises(NodeDiedError):
            await _never(counter)
        began = loop.time()
    assert loop.time() - began < 10.0


async def test_a_node_that_dies_too_often_is_given_up() -> None:
    async with Mesh(nodes=2, restart=RestartPolicy.on_failure(max_restarts=1, backoff=0.0)) as mesh:
        counter = await mesh.spawn(Counter, restart=RestartPolicy.on_failure(max_restarts=10, backoff=0.0))
        events = mesh.watch(counter)
        os.kill(mesh.pids[1], signal.SIGKILL)
        assert isinstance(await anext(events), Restarted)
        os.kill(mesh.pids[1], signal.SIGKILL)
        assert isinstance(await anext(events), Terminated)
        with pytest.raises(NodeDiedError):
            await counter.add(1)
        assert await (await mesh.spawn(Counter)).pid() == os.getpid()


async def test_children_of_a_dead_nodes_actor_end_everywhere(pair: Mesh) -> None:
    parent = await pair.spawn(Parent, node=1)
    child = await parent.spawn(2)
    events = pair.watch(child)
    os.kill(pair.pids[1], signal.SIGKILL)
    assert isinstance(await anext(events), Terminated)


async def test_a_node_whose_thread_is_blocked_is_not_declared_dead() -> None:
    async with Mesh(nodes=2) as mesh:
        fragile = await mesh.spawn(Fragile)
        events = mesh.watch(fragile)
        assert await fragile.block(1.0) == "done"
        assert await fragile.add(1) == 1
        await mesh.stop(fragile)
        assert isinstance(await anext(events), Terminated)


async def test_everything_is_gone_after_the_mesh() -> None:
    async with Mesh(nodes=3) as mesh:
        counter = await mesh.spawn(Counter)
        pids = list(mesh.pids.values())
        folder = Path(mesh.folder or "")
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700  # noqa: ASYNC240
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert not folder.exists()  # noqa: ASYNC240
    with pytest.raises(UnroutableError):
        await counter.add(1)
    with pytest.raises(UnroutableError):
        mesh.get("x")


async def test_the_mesh_ends_in_time_although_an_actor_does_not() -> None:
    loop = asyncio.get_running_loop()
    async with Mesh(nodes=2, stop_timeout=0.2) as mesh:
        fragile = await mesh.spawn(Fragile)
        log = await mesh.spawn(Log, node=0)
        blocked = asyncio.create_task(fragile.block(30.0))
        held = asyncio.create_task(log.hold())
        await log.wait_for("hold begins")
        began = loop.time()
    assert loop.time() - began < 15.0
    results = await asyncio.gather(blocked, held, return_exceptions=True)
    assert isinstance(results[0], NodeDiedError | UnroutableError)
    assert isinstance(results[1], ActorStoppedError)


async def test_on_stop_runs_in_children_when_the_mesh_ends(tmp_path: Path) -> None:
    async with Mesh() as outer:
        log = await outer.spawn(Log)
        async with Mesh(nodes=2) as mesh:
            inner = await mesh.spawn(Log, node=0)
            await mesh.spawn(Fragile, inner, "remote")
            await inner.wait_for("remote started")
            with pytest.raises(CodecError, match="another mesh"):
                await mesh.spawn(Fragile, log, node=1)


async def test_meshes_in_one_process_keep_apart() -> None:
    async with Mesh(nodes=2) as one, Mesh(nodes=2) as two:
        a = await one.spawn(Counter, name="same")
        b = await two.spawn(Counter, name="same")
        assert await asyncio.gather(a.add(1), b.add(2)) == [1, 2]
        assert a != b
        with pytest.raises(CodecError, match="another mesh"):
            await (await one.spawn(Echo)).echo(b)


async def test_a_class_no_child_can_import_is_refused() -> None:
    class Local(Counter):
        pass

    async with Mesh(nodes=2) as mesh:
        with pytest.raises(SpawnError, match="inside a function"):
            await mesh.spawn(Local)
        assert await (await mesh.spawn(Local, node=0)).add(1) == 1


async def test_a_child_that_can_not_start_says_why() -> None:
    with pytest.raises(SpawnError, match="ended while it started"):
        async with Mesh(nodes=2, env={"PYTHONHOME": "/nowhere"}):
            pass


async def test_a_stalled_receiver_bounds_the_senders_memory() -> None:
    async with Mesh(nodes=2) as mesh:
        log = await mesh.spawn(Log, mailbox=8)
        held = asyncio.create_task(log.hold())
        await log.wait_for("hold begins")
        patient = log.options(wait=True)
        sent = 0

        async def send() -> None:
            nonlocal sent
            for _ in range(1000):
                await patient.tell.note("x" * 10_000)
                sent += 1

        sender = asyncio.create_task(send())
        other = await mesh.spawn(Counter)
        for _ in range(50):
            await other.add(1)
        assert sent <= 9
        held.cancel()
        await sender
        assert (await log.read()).count("x" * 10_000) == 1000


async def test_asks_of_a_killed_process_fail_within_a_tenth_of_a_second() -> None:
    delays: list[float] = []
    while len(delays) < 20 and min(delays, default=1.0) >= 0.1:  # the machine may be busy with other things for a while
        async with Mesh(nodes=2) as mesh:
            logs = [await mesh.spawn(Log) for _ in range(50)]
            asks = [asyncio.ensure_future(log.hold()) for log in logs]
            await asyncio.gather(*(log.wait_for("hold begins") for log in logs))
            start = time.perf_counter()
            os.kill(mesh.pids[1], signal.SIGKILL)
            ends = await asyncio.gather(*asks, return_exceptions=True)
            delays.append(time.perf_counter() - start)
            assert {type(end) for end in ends} == {NodeDiedError}
    assert min(delays) < 0.1
