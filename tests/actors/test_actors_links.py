"""Links between hosts that fall silent, are cut, fill up, or carry too much. All on loopback."""

import asyncio
import errno
import signal
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
import zmq
from guests import guest
from zoo import Chain, Counter, Echo, EndsLater, Fragile, Log

from tinker_actors.actors import (
    CodecError,
    DeadlineExceeded,
    Mesh,
    NodeDiedError,
    NodeUnreachableError,
    Restarted,
    RestartPolicy,
    Terminated,
)
from tinker_actors.actors.link import Inbound, Outbound

ANY = "tcp://127.0.0.1:0"
REVIVED = RestartPolicy.on_failure(backoff=0.0)
PING = 0.5


async def test_a_silent_link_fails_its_calls_within_two_and_a_half_pings_and_resumes() -> None:
    ping = 0.4
    async with Mesh(nodes=2, listen=ANY, ping=ping) as mesh, guest(mesh, count=3) as process:
        log = await mesh.spawn(Log, node=2)
        counter = await mesh.spawn(Counter, node=2)
        near = await mesh.spawn(Chain, node=1)
        far = await mesh.spawn(Chain, node=2)
        home = await mesh.spawn(Log, node=0)
        assert await counter.add(1) == 1
        held = [asyncio.create_task(log.hold())]
        await log.wait_for("hold begins")
        held.append(asyncio.create_task(near.hold_other(log)))
        back = asyncio.create_task(far.hold_other(home))
        await home.wait_for("nested begins")
        events = mesh.watch(counter)
        loop = asyncio.get_running_loop()
        began = loop.time()
        process.send_signal(signal.SIGSTOP)
        for task in (*held, back):
            with pytest.raises(NodeUnreachableError):
                await task
        took = [loop.time() - began]
        await home.wait_for("nested cancelled")
        with pytest.raises(NodeUnreachableError):
            await counter.add(1)
        process.send_signal(signal.SIGCONT)
        assert await _resumes(counter.value) == 1  # the same actor, and no call of the cut came through late
        await log.wait_for("hold cancelled")
        assert await _resumes(lambda: near.through([far])) == "end"
        while min(took) >= 2.5 * ping + 0.1 and len(took) < 10:  # the machine may be busy with other things for a while
            began = loop.time()
            process.send_signal(signal.SIGSTOP)
            with pytest.raises(NodeUnreachableError):
                await counter.value()
            took.append(loop.time() - began)
            process.send_signal(signal.SIGCONT)
            await _resumes(counter.value)
        assert min(took) < 2.5 * ping + 0.1, took
        await mesh.stop(counter)
        assert isinstance(await anext(events), Terminated)


async def test_where_one_side_begins_the_link_anew_the_other_fails_what_it_waits_for() -> None:
    async with Mesh(listen=ANY) as mesh:
        home = await mesh.spawn(Log, node=0, name="home")
        async with Mesh.join(mesh.url or "") as there:
            log = there.get("home")
            held = asyncio.create_task(log.hold())
            await home.wait_for("hold begins")
            exchange = mesh._open()[1].exchange
            peer = exchange.by_index[1]
            assert exchange.network is not None
            assert peer.wire is not None
            exchange.network._renew(peer, peer.wire, "a test says so")
            async with asyncio.timeout(60):
                with pytest.raises(NodeUnreachableError):
                    await held
                assert await _resumes(log.read) == ["hold begins", "hold cancelled"]


async def _until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


async def test_what_was_given_up_before_a_peer_was_there_never_reaches_it() -> None:
    context, loop, came = zmq.Context(), asyncio.get_running_loop(), list[bytes]()
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # pytest's own path may be too long for a socket
        url = f"ipc://{folder}/socket"
        link = Outbound(context, loop, url, b"me", Outbound.flush)
        link.put(b"\x01", now=True)
        assert link.waiting == (1, 3)
        link.drop()
        inbound = Inbound(context, loop, url, 1000, lambda _, data, __: came.append(data))
        link.put(b"\x02", now=True)
        await _until(lambda: came)
        assert came == [b"\x92\x02\xc0"]
        link.close()
        inbound.close()
        context.destroy()


async def test_a_message_that_can_not_be_sent_without_a_copy_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of it may have left: what comes after it would be taken for the rest."""
    context, loop, came = zmq.Context(), asyncio.get_running_loop(), list[tuple[bytes, list[bytes]]]()
    inbound = Inbound(
        context, loop, ANY, 1 << 20, lambda _, data, frames: came.append((data, [bytes(frame) for frame in frames]))
    )
    link = Outbound(context, loop, inbound.url, b"me", Outbound.flush)
    send = zmq.Socket.send

    def exhausted(socket: Any, data: Any, flags: int = 0, copy: bool = True, **options: Any) -> Any:
        if not copy:
            raise OSError(errno.EMFILE, "too many open files")
        return send(socket, data, flags, copy, **options)

    monkeypatch.setattr(zmq.Socket, "send", exhausted)
    large, larger = bytes(100_000), bytes(300_000)
    link.put(b"\x01", [memoryview(large), memoryview(larger)], now=True)
    link.put(larger, now=True)
    link.put(b"\x02", now=True)
    await _until(lambda: len(came) == 3)
    assert came[0][1] == [large, larger]
    assert came[1:] == [(b"\x92" + larger + b"\xc0", []), (b"\x92\x02\xc0", [])]
    link.close()
    inbound.close()
    context.destroy()


async def test_a_peer_that_connects_again_is_heard_although_its_former_connection_was_not_seen_to_end() -> None:
    context, loop, came = zmq.Context(), asyncio.get_running_loop(), list[bytes]()
    inbound = Inbound(context, loop, ANY, 1000, lambda _, data, __: came.append(data))
    links: list[Outbound] = []
    for number in (1, 2):
        links.append(Outbound(context, loop, inbound.url, b"me", Outbound.flush))
        links[-1].put(bytes([number]), now=True)
        await _until(lambda: len(came) == len(links))
    assert came == [b"\x92\x01\xc0", b"\x92\x02\xc0"]
    for closed in (*links, inbound):
        closed.close()
    context.destroy()


async def _resumes(call: Any) -> Any:
    async with asyncio.timeout(60):
        while True:
            try:
                return await call()
            except NodeUnreachableError:
                await asyncio.sleep(0.01)


async def test_a_node_that_is_silent_for_too_long_is_given_up_and_ends() -> None:
    async with Mesh(listen=ANY, ping=0.3, patience=2.0) as mesh, guest(mesh, "--patience", "2") as process:
        counter = await mesh.spawn(Counter, node=1, restart=REVIVED)
        events = mesh.watch(counter)
        process.send_signal(signal.SIGSTOP)
        event = await anext(events)
        assert isinstance(event, Terminated)
        assert isinstance(event.reason, NodeDiedError)
        process.send_signal(signal.SIGCONT)
        assert await process.wait() == 1
        with pytest.raises(NodeDiedError):
            await counter.add(1)


async def test_what_ends_or_restarts_while_the_link_is_cut_is_known_after_it() -> None:
    async with Mesh(listen=ANY, ping=PING) as mesh, guest(mesh) as process:
        log = await mesh.spawn(Log, node=0)
        ended = await mesh.spawn(EndsLater, "leave", node=1, name="ended")
        again = await mesh.spawn(EndsLater, "fail", node=1, restart=REVIVED)
        kept = await mesh.spawn(Counter, node=1)
        watches = [mesh.watch(actor) for actor in (ended, again)]
        ended.tell.go(0.5)
        again.tell.go(0.5)
        await kept.add(1)
        await _cut(process, mesh)
        process.send_signal(signal.SIGCONT)
        assert isinstance(await anext(watches[0]), Terminated)
        assert isinstance(await anext(watches[1]), Restarted)
        with pytest.raises(LookupError):
            mesh.get("ended")
        assert await _resumes(kept.value) == 1
        assert await log.read() == []


async def _cut(process: asyncio.subprocess.Process, mesh: Mesh) -> None:
    process.send_signal(signal.SIGSTOP)
    exchange = mesh._open()[1].exchange
    while exchange.is_linked(1):  # noqa: ASYNC110
        await asyncio.sleep(0.005)


async def test_a_blocked_node_is_not_cut_off() -> None:
    async with Mesh(listen=ANY, ping=0.4) as mesh, guest(mesh):
        fragile = await mesh.spawn(Fragile, node=1)
        home = await mesh.spawn(Fragile, node=0)
        far = await mesh.spawn(Chain, node=1)
        assert await fragile.block(1.5) == "done"
        assert await home.block(1.5) == "done"  # this process's loop
        assert await far.through([await mesh.spawn(Chain, node=0)]) == "end"
        assert await fragile.add(1) == 1


async def test_a_stalled_receiver_on_another_host_bounds_the_senders_memory() -> None:
    async with Mesh(listen=ANY) as mesh, Mesh.join(mesh.url or ""):
        log = await mesh.spawn(Log, mailbox=8, node=1)
        held = asyncio.create_task(log.hold())
        await log.wait_for("hold begins")
        patient = log.options(wait=True)
        sent = 0

        async def send() -> None:
            nonlocal sent
            for _ in range(500):
                await patient.tell.note("x" * 10_000)
                sent += 1

        sender = asyncio.create_task(send())
        other = await mesh.spawn(Counter, node=1)
        for _ in range(50):
            await other.add(1)
        assert sent <= 9
        held.cancel()
        await sender
        assert (await log.read()).count("x" * 10_000) == 500


async def test_a_message_over_the_limit_is_refused_at_its_sender_and_the_link_lives_on() -> None:
    async with Mesh(listen=ANY, max_message=100_000) as mesh, Mesh.join(mesh.url or "") as joined:
        counter = await mesh.spawn(Counter, node=1)
        here, there = await mesh.spawn(Echo, node=0, name="here"), await mesh.spawn(Echo, node=1)
        for echo in (there, joined.get("here")):
            with pytest.raises(CodecError, match="100000 bytes"):
                await echo.echo(b"x" * 200_000)
        assert here.address.node == 0
        assert await counter.add(1) == 1


async def test_a_frame_over_the_limit_cuts_off_only_its_sender() -> None:
    import zmq

    async with Mesh(listen=ANY, max_message=1000) as mesh, Mesh.join(mesh.url or ""):
        counter = await mesh.spawn(Counter, node=1)
        context = zmq.Context()
        with context.socket(zmq.DEALER) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
            socket.connect(mesh.url or "")
            socket.send(b"x" * 3_000_000)
            while not monitor.poll(0):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            socket.disable_monitor()
            monitor.close(0)
        context.term()
        assert await counter.add(1) == 1


async def test_a_cut_while_asks_have_deadlines_ends_them_typed_and_in_time() -> None:
    async with Mesh(listen=ANY, ping=5.0) as mesh, guest(mesh) as process:
        counter = await mesh.spawn(Counter, node=1)
        process.send_signal(signal.SIGSTOP)
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(DeadlineExceeded):
            await counter.options(timeout=0.2).add(1)
        assert loop.time() - began < 2.5 * 5.0  # and before the link counts as cut
        process.send_signal(signal.SIGCONT)
