"""Nodes of other hosts: joining, leaving, dying, coming back, and what they may ask. All on loopback."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from guests import HERE, guest
from zoo import Chain, Counter, Echo, Fragile, Log, Parent

from tinker_actors.actors import (
    Actor,
    ActorFailure,
    ActorStoppedError,
    JoinError,
    ListenError,
    Mesh,
    NodeDiedError,
    NodeUnreachableError,
    Restarted,
    RestartPolicy,
    SpawnError,
    Terminated,
    UnroutableError,
    network,
)
from tinker_actors.actors import envelope as env
from tinker_actors.actors.codec import Codec
from tinker_actors.actors.worker import system_address

ANY = "tcp://127.0.0.1:0"
REVIVED = RestartPolicy.on_failure(backoff=0.0)


@pytest.fixture
async def trio() -> AsyncIterator[tuple[Mesh, Mesh, Any]]:
    """Node 0 and its child on one host, and nodes 2 and 3 of two others."""
    async with (
        Mesh(nodes=2, listen=ANY) as mesh,
        Mesh.join(mesh.url or "", name="two") as two,
        Mesh.join(mesh.url or "", name="three") as three,
    ):
        yield mesh, two, three


async def test_every_node_reaches_every_other_directly(trio: tuple[Mesh, Any, Any]) -> None:
    mesh, two, three = trio
    chains = [await mesh.spawn(Chain, node=node, name=f"chain-{node}") for node in range(4)]
    assert [await chain.ping() for chain in chains] == ["pong"] * 4  # the news of the names was sent before these
    for view in (mesh, two, three):
        assert [view.get(f"chain-{node}") for node in range(4)] == chains
    for start in range(4):
        others = [chains[node] for node in range(4) if node != start]
        assert await chains[start].through([*others, await mesh.spawn(Chain, node=start)]) == "end"


async def test_a_guest_spawns_watches_and_stops_actors_anywhere(trio: tuple[Mesh, Any, Any]) -> None:
    _, two, three = trio
    for node in range(4):
        fragile = await two.spawn(Fragile, node=node, name="same")
        assert fragile.address.node == node
        events = three.watch(fragile)
        fragile.tell.breaks()
        event = await anext(events)
        assert isinstance(event, Terminated)
        assert isinstance(event.reason, ActorFailure)
        again = await three.spawn(Fragile, node=node, name="same")
        await two.stop(again)
        with pytest.raises(ActorStoppedError):
            await again.add(1)
    with pytest.raises(SpawnError, match="node must be one of"):
        await two.spawn(Fragile, node=4)


async def test_children_of_a_guests_actor_end_with_it_everywhere(trio: tuple[Mesh, Any, Any]) -> None:
    mesh, _, _ = trio
    parent = await mesh.spawn(Parent, node=2)
    child = await parent.spawn(3)
    events = mesh.watch(child)
    await mesh.stop(parent)
    assert isinstance(await anext(events), Terminated)


async def test_a_guest_that_leaves_serves_what_waits_first_and_its_answers_arrive() -> None:
    async with Mesh(listen=ANY) as mesh:
        joined = Mesh.join(mesh.url or "")
        async with joined:
            log = await mesh.spawn(Log)
            asks = [asyncio.create_task(log.note(str(number))) for number in range(500)]
            echoes = await mesh.spawn(Echo)
            large = asyncio.create_task(echoes.zeros(20_000_000))
            await asyncio.sleep(0)
        assert await asyncio.gather(*asks) == [None] * 500
        assert len(await large) == 20_000_000
        with pytest.raises((NodeDiedError, NodeUnreachableError, ActorStoppedError)):
            await log.read()
        with pytest.raises(UnroutableError):
            joined.get("x")
        counter = await mesh.spawn(Counter)
        assert counter.address.node == 0  # nothing is placed on a node that has left


async def test_the_end_of_the_mesh_ends_its_guests() -> None:
    async with Mesh(listen=ANY) as mesh, guest(mesh) as process:
        joined = Mesh.join(mesh.url or "", name="inside")
        await joined.__aenter__()
        log = await mesh.spawn(Log, node=2)
        other = await mesh.spawn(Log, node=1)
        assert await other.read() == await log.read() == []
        await mesh.__aexit__(None, None, None)
        assert await process.wait() == 0
        await asyncio.wait_for(joined.wait_closed(), 60)
    with pytest.raises(UnroutableError):
        await log.read()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
async def test_a_signal_makes_a_node_leave_in_order(number: signal.Signals, code: int) -> None:
    async with Mesh(listen=ANY) as mesh, guest(mesh) as process:
        log = await mesh.spawn(Log, node=0)
        await mesh.spawn(Fragile, log, "far", node=1)
        process.send_signal(number)
        assert await process.wait() == code
        assert await log.read() == ["far started", "far stopped"]


async def test_a_second_mesh_on_a_port_fails_at_start_and_port_0_takes_a_free_one() -> None:
    async with Mesh(listen=ANY) as first, Mesh.join(first.url or "") as joined:
        with pytest.raises(ListenError, match="in use"):
            async with Mesh(listen=first.url):
                pass
        async with Mesh(listen=ANY) as second:
            assert second.url != first.url
            assert second.nodes == 1
        counter = await first.spawn(Counter, node=joined.node)
        assert await counter.add(1) == 1


HEAD = """
import asyncio
from tinker_actors.actors import Mesh
from zoo import Log

async def main():
    async with Mesh(listen="tcp://127.0.0.1:0") as mesh:
        await mesh.spawn(Log, name="log")
        print(mesh.url, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_guest_never_talks_to_the_next_mesh_on_its_port() -> None:
    first = await asyncio.create_subprocess_exec(sys.executable, "-c", HEAD, cwd=HERE, stdout=asyncio.subprocess.PIPE)
    assert first.stdout is not None
    try:
        url = (await first.stdout.readline()).decode().strip()
        async with Mesh.join(url, patience=1.5) as joined:
            log = joined.get("log")
            first.kill()
            await first.wait()
            async with Mesh(listen=url) as second:
                second._directory._next_id = lambda: log.address.id  # only the mesh tells the two apart
                other = await second.spawn(Log, node=0, name="log")
                assert other.address.id == log.address.id
                told = True
                while told:
                    try:
                        log.tell.note("astray")
                        await asyncio.sleep(0.01)
                    except (NodeUnreachableError, NodeDiedError):
                        told = False
                with pytest.raises(NodeDiedError):
                    await asyncio.wait_for(joined.wait_closed(), 60)
                assert await other.read() == []
                assert second.nodes == 1
    finally:
        if first.returncode is None:
            first.kill()
        await first.wait()


async def test_two_living_nodes_can_not_have_one_name() -> None:
    async with Mesh(listen=ANY) as mesh, Mesh.join(mesh.url or "", name="same"):
        with pytest.raises(JoinError, match="in the mesh already"):
            async with Mesh.join(mesh.url or "", name="same"):
                pass


async def test_a_name_is_taken_until_its_node_has_left() -> None:
    async with Mesh(listen=ANY) as mesh:
        former = Mesh.join(mesh.url or "", name="same")
        await former.__aenter__()
        log = await mesh.spawn(Log, node=1)
        held = asyncio.ensure_future(log.hold())
        await log.wait_for("hold begins")
        leaving = asyncio.ensure_future(former.__aexit__(None, None, None))
        refusal = "already"
        async with asyncio.timeout(30):
            while "already" in refusal:
                with pytest.raises(JoinError) as refused:
                    await Mesh.join(mesh.url or "", name="same").__aenter__()
                refusal = str(refused.value)
        assert "a node named 'same' is about to leave the mesh" in refusal
        held.cancel()
        await leaving
        async with Mesh.join(mesh.url or "", name="same", patience=30.0):
            assert await (await mesh.spawn(Counter, node=2)).add(1) == 1


async def test_a_node_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from tinker_actors.actors import joining

    async with Mesh(listen=ANY) as mesh:
        monkeypatch.setattr(joining, "VERSION", 99)
        with pytest.raises(JoinError, match="version 99"):
            async with Mesh.join(mesh.url or ""):
                pass


async def test_a_killed_guests_calls_fail_at_once_and_its_actors_end() -> None:
    async with Mesh(listen=ANY, ping=5.0, patience=0.5) as mesh, guest(mesh) as process:  # noqa: SIM117
        async with Mesh.join(mesh.url or "", name="third") as third:
            log = await mesh.spawn(Log, node=1)
            chain = await mesh.spawn(Chain, node=third.node)
            held = [asyncio.create_task(log.hold())]
            await log.wait_for("hold begins")
            held.append(asyncio.create_task(chain.hold_other(log)))
            events = mesh.watch(log)
            loop = asyncio.get_running_loop()
            began = loop.time()
            process.kill()
            for task in held:
                with pytest.raises(NodeUnreachableError):
                    await task
            assert loop.time() - began < 5.0  # before a ping would tell
            event = await anext(events)
            assert isinstance(event, Terminated)
            assert isinstance(event.reason, NodeDiedError)
            with pytest.raises(NodeDiedError, match="could not be reached"):
                await log.read()


async def test_a_restarted_guest_gets_its_actors_again_and_no_answer_of_its_former_self(tmp_path: Path) -> None:
    async with Mesh(nodes=2, listen=ANY) as mesh, Mesh.join(mesh.url or "", name="third") as third:
        chain = await mesh.spawn(Chain, node=third.node)
        home = await mesh.spawn(Log, node=0)
        async with guest(mesh, count=4) as process:
            node = max(mesh._open()[1].count - 1, 3)
            counter = await mesh.spawn(Counter, 40, node=node, restart=REVIVED, name="counter")
            mortal = await mesh.spawn(Counter, node=node)
            asker = await mesh.spawn(Chain, node=node, restart=REVIVED)
            assert await counter.add(2) == 42
            old = await counter.pid()
            asking = asyncio.create_task(asker.hold_other(home))
            await home.wait_for("nested begins")
            process.kill()
            await asyncio.wait([asking])
        events, end = mesh.watch(counter), mesh.watch(mortal)
        async with guest(mesh, count=4):
            event = await anext(events)
            assert isinstance(event, Restarted)
            assert event.incarnation == 2
            assert isinstance(await anext(end), Terminated)
            await home.open()
            assert await counter.add(1) == 41
            assert await mesh.get("counter").pid() != old
            assert await chain.through([asker, await mesh.spawn(Chain, node=1)]) == "end"
            await home.wait_for("nested cancelled")  # what its former self asked was not left running


async def test_an_ask_of_a_node_that_does_not_exist_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "PATIENCE", 0.2)
    async with Mesh(listen=ANY) as mesh, Mesh.join(mesh.url or "") as joined:
        node = joined._node
        assert node is not None
        ghost: Any = node.ref(system_address(node.mesh, 7))
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(UnroutableError, match="no node 7"):
            await ghost.ping()
        assert loop.time() - began < 10.0


async def test_a_guest_may_not_give_orders_to_other_nodes(trio: tuple[Mesh, Any, Any]) -> None:
    _, two, _ = trio
    node = two._node
    for index in (0, 1, 3):
        agent: Any = node.ref(system_address(node.mesh, index))
        with pytest.raises(UnroutableError, match="the mesh's own"):
            await agent.leave()


async def test_strangers_and_impostors_on_the_network_get_nowhere() -> None:
    import zmq

    async with Mesh(nodes=2, listen=ANY) as mesh, Mesh.join(mesh.url or ""):
        log = await mesh.spawn(Log, node=0)
        await (await mesh.spawn(Log, node=2)).read()
        node = mesh._open()[1]
        codec = Codec()
        context = zmq.Context()

        def send(identity: bytes, *parts: list[Any]) -> None:
            with context.socket(zmq.DEALER) as socket:
                socket.setsockopt(zmq.ROUTING_ID, identity)
                socket.setsockopt(zmq.LINGER, 1000)
                socket.connect(mesh.url or "")
                socket.send(env.join([codec.encode(part) for part in parts], ()))

        tell = [env.TELL, log.address.id, "note", ["forged"], None, None]
        send(b"stranger", tell)
        send(b"1:1>0:1", tell)  # the name of a child, which never comes in through the network
        send(b"9:1>0:1", [env.HELLO, "wrong mesh", 9, 1, "", ANY, 1, 0], tell)
        send(b"9:2>0:1", [env.HELLO, node.mesh, 2, 1, "", ANY, 5, 0], tell)
        send(b"join x", [])
        while node.exchange.bad_messages < 6:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        context.term()
        assert await log.read() == []


class Stranger(Actor):
    pass


async def test_only_modules_that_were_allowed_can_be_asked_for() -> None:
    async with Mesh(listen=ANY) as mesh, guest(mesh):
        with pytest.raises(SpawnError, match="only zoo may"):
            await mesh.spawn(Stranger, node=1)
        assert await (await mesh.spawn(Counter, node=1)).add(1) == 1


async def test_a_guest_can_not_make_node_0_import_or_run_anything(tmp_path: Path) -> None:
    from tinker_actors.actors.control import ClassLocation, SpawnRequest

    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    async with Mesh(nodes=2, listen=ANY) as mesh, Mesh.join(mesh.url or "") as joined:
        desk: Any = joined._desk

        async def ask_for(module: str, qualname: str, path: str | None, node: int) -> None:
            await desk.spawn(
                SpawnRequest(
                    location=ClassLocation(module=module, qualname=qualname, path=path),
                    arguments=Codec().encode([[], {}]),
                    name=None,
                    node=node,
                    mailbox=1,
                    policy=RestartPolicy.never(),
                    parent=None,
                    token=(2, 1, 0),
                )
            )

        for node in (0, 1, 2):
            for module, qualname, path in [
                ("evil", "Evil", str(tmp_path / "evil.py")),
                ("antigravity", "fly", None),
                ("subprocess", "Popen", None),
                ("zoo", "os.system", None),
                ("__main__", "Anything", None),
            ]:
                with pytest.raises(SpawnError):
                    await ask_for(module, qualname, path, node)
        assert "antigravity" not in sys.modules
        assert mesh.nodes == 3


async def test_the_head_waits_for_its_nodes_and_says_when_they_do_not_come() -> None:
    async with Mesh(listen=ANY) as mesh:
        waiting = asyncio.create_task(mesh.wait_for_nodes(2))
        async with Mesh.join(mesh.url or ""):
            await waiting
        with pytest.raises(JoinError, match="3 nodes"):
            await mesh.wait_for_nodes(3, timeout=0.05)


def test_an_unknown_module_is_a_mistake_of_the_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tinker_actors.cli", "node", "--join", ANY, "--import", "no_such_module"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=os.environ)
    assert result.returncode == 2
    assert "no_such_module" in result.stderr
