"""Ask, tell and stream: delivery, order, back-pressure."""

import asyncio
import contextlib
import gc

import numpy as np
import pytest
from spawning_zoo import Room
from zoo import Chain, Colour, Counter, Echo, Fragile, Log, Parcel

from tinker_actors.actors import ActorRef, CodecError, DeadlineExceeded, MailboxFull, Mesh


async def test_an_ask_returns_the_handlers_result_and_keeps_state(mesh: Mesh) -> None:
    counter = await mesh.spawn(Counter, 5)
    assert await counter.add(1) == 6
    assert await counter.add(n=2) == 8


async def test_a_tell_is_served_before_the_same_senders_next_ask(mesh: Mesh) -> None:
    counter = await mesh.spawn(Counter)
    for _ in range(100):
        counter.tell.add(1)
    assert await counter.value() == 100


async def test_messages_of_one_sender_are_served_in_order(mesh: Mesh) -> None:
    log = await mesh.spawn(Log)
    for i in range(300):
        log.tell.note(str(i))
    assert await log.read() == [str(i) for i in range(300)]


async def test_one_message_at_a_time_unless_declared_concurrent(mesh: Mesh) -> None:
    log = await mesh.spawn(Log)
    first = asyncio.create_task(log.hold("a"))
    await log.wait_for("a begins")
    second = asyncio.create_task(log.hold("b"))
    await asyncio.sleep(0)
    first.cancel()
    await log.open()
    assert await second == "b"
    assert await log.read() == ["a begins", "a cancelled", "b begins", "b ends"]


async def test_concurrent_messages_run_side_by_side_and_beside_an_exclusive_one(mesh: Mesh) -> None:
    log = await mesh.spawn(Log)
    exclusive = asyncio.create_task(log.hold("x"))
    await log.wait_for("x begins")
    beside = [asyncio.create_task(log.hold_beside(name)) for name in ("a", "b")]
    await log.wait_for("a begins")
    await log.wait_for("b begins")
    await log.open()
    assert await asyncio.gather(exclusive, *beside) == ["x", "a", "b"]


async def test_as_many_concurrent_messages_run_at_once_as_the_mailbox_has_places(mesh: Mesh) -> None:
    room = await mesh.spawn(Room, mailbox=3)
    assert max(await asyncio.gather(*(room.visit() for _ in range(30)))) == 3


async def test_a_concurrent_message_does_not_overtake_an_earlier_one(mesh: Mesh) -> None:
    log = await mesh.spawn(Log)
    held = asyncio.create_task(log.hold())
    await log.wait_for("hold begins")
    log.tell.note("first")
    seen = asyncio.create_task(log.wait_for("first"))
    log.tell.open()
    late = asyncio.create_task(log.peek())
    await asyncio.sleep(0)
    held.cancel()
    await seen
    assert "first" in await late


async def test_a_stream_yields_every_item_and_ends(mesh: Mesh) -> None:
    counter = await mesh.spawn(Counter)
    assert [i async for i in counter.stream.count_to(100)] == list(range(1, 101))


async def test_a_slow_reader_slows_the_producer(mesh: Mesh) -> None:
    log = await mesh.spawn(Log)
    stream = log.options(buffer=4).stream.numbers_beside()
    for i in range(10):
        assert await anext(stream) == i
    # The read-ahead settles at the buffer's size, however often the producer could have run.
    await log.wait_for("made 12")
    for _ in range(20):
        made = len(await log.peek())
    assert 13 <= made <= 14
    await stream.aclose()


async def test_leaving_the_loop_early_cancels_the_producer(mesh: Mesh) -> None:
    log = await mesh.spawn(Log)
    async for i in log.stream.numbers():
        if i == 3:
            break
    del i
    gc.collect()
    await log.wait_for("stream closed")
    assert "stream closed" in await log.read()


async def test_closing_a_stream_ends_the_task_that_waits_for_its_next_item(mesh: Mesh) -> None:
    chain, log = await mesh.spawn(Chain), await mesh.spawn(Log)
    stream = chain.stream.hold_between(log)
    assert await anext(stream) == 1
    waiting = asyncio.create_task(anext(stream))
    await log.wait_for("hold begins")
    with pytest.raises(RuntimeError, match="hold_between is being read by another task"):
        await anext(stream)
    await stream.aclose()
    with pytest.raises(StopAsyncIteration):
        async with asyncio.timeout(60.0):
            await waiting
    await log.wait_for("hold cancelled")


async def test_a_streams_error_comes_after_its_items(mesh: Mesh) -> None:
    fragile = await mesh.spawn(Fragile)
    stream = fragile.stream.stops_half_way(3)
    seen = [await anext(stream) for _ in range(3)]
    with pytest.raises(ValueError, match="stream broke"):
        await anext(stream)
    assert seen == [0, 1, 2]
    assert await fragile.add(1) == 1


async def test_values_arrive_exactly_as_they_were(mesh: Mesh) -> None:
    echo = await mesh.spawn(Echo)
    values = [1, 2.5, None, True, "é", b"x", (1, (2,)), [1], {"a": (1,), 2: "b"}, {1}, frozenset({2}), 2**70]
    values += [Parcel(weight=1.0, labels=("a",)), Colour.BLUE]
    assert await echo.echo(values) == values
    result = await echo.keywords(1, (2,), a=[3])
    assert result == [(1, (2,)), {"a": [3]}]


async def test_arrays_arrive_equal_and_small_ones_writable(mesh: Mesh) -> None:
    echo = await mesh.spawn(Echo)
    for size in (0, 10, 16_000):
        array = np.arange(size, dtype=np.float32)
        back = await echo.echo(array)
        assert back.dtype == array.dtype
        np.testing.assert_array_equal(back, array)
        back += 1


async def test_a_ref_can_be_sent_and_returned_and_still_works(mesh: Mesh) -> None:
    counter = await mesh.spawn(Counter, 1, name="c")
    echo = await mesh.spawn(Echo, node=0)
    back = await echo.echo(counter)
    assert back == counter
    assert hash(back) == hash(counter)
    assert await back.add(1) == 2
    itself = await counter.whoami()
    assert isinstance(itself, ActorRef)
    assert itself == counter
    assert "c (Counter)" in repr(itself)


async def test_names_resolve_and_unknown_ones_say_what_there_is(mesh: Mesh) -> None:
    counter = await mesh.spawn(Counter, name="tally")
    assert mesh.get("tally") == counter
    with pytest.raises(LookupError, match="tally"):
        mesh.get("other")
    await mesh.stop(counter)
    with pytest.raises(LookupError):
        mesh.get("tally")


async def test_only_public_coroutine_methods_are_messages(mesh: Mesh) -> None:
    counter = await mesh.spawn(Counter)
    with pytest.raises(AttributeError, match="not a message"):
        await counter.sync()
    with pytest.raises(AttributeError, match="not a message"):
        await counter.nothing()
    with pytest.raises(AttributeError, match="private"):
        await counter._private()
    with pytest.raises(AttributeError, match="not a message"):
        await counter.on_start()
    with pytest.raises(TypeError, match="stream"):
        await counter.count_to(3)
    with pytest.raises(TypeError, match="await"):
        await anext(counter.stream.add(1))
    with pytest.raises(TypeError, match="argument"):
        await counter.add(1, 2, 3)
    assert await counter.add(1) == 1


async def test_a_full_mailbox_refuses_tells_and_asks_that_do_not_wait(mesh: Mesh) -> None:
    log = await mesh.spawn(Log, mailbox=3)
    held = asyncio.create_task(log.hold())
    while "hold begins" not in await log.peek():  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    for i in range(3):
        log.tell.note(str(i))
    with pytest.raises(MailboxFull):
        log.tell.note("too many")
    with pytest.raises(MailboxFull):
        await log.options(wait=False).note("too many")
    with pytest.raises(MailboxFull):
        await anext(log.options(wait=False).stream.numbers())
    held.cancel()
    assert (await log.read())[-3:] == ["0", "1", "2"]


async def test_a_mailbox_that_others_have_filled_refuses_what_does_not_wait(mesh: Mesh) -> None:
    """The sender itself has sent nothing: only the receiver knows that there is no room."""
    log = await mesh.spawn(Log, mailbox=2)
    first, *others = [await mesh.spawn(Chain) for _ in range(3)]
    held = [asyncio.create_task(first.hold_other(log))]
    await log.wait_for("nested begins")
    held += [asyncio.create_task(other.hold_other(log)) for other in others]
    async with asyncio.timeout(60):
        while max(actor.mailbox or 0 for actor in (await mesh.describe()).actors) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    with pytest.raises(MailboxFull):
        await log.options(wait=False).note("too many")
    with pytest.raises(MailboxFull):
        await anext(log.options(wait=False).stream.numbers())
    with pytest.raises(MailboxFull):
        await mesh.group([log]).options(wait=False).ask.note("too many")
    for task in held:
        task.cancel()
    assert "too many" not in await log.read()


async def test_a_full_mailbox_slows_a_sender_that_waits(mesh: Mesh) -> None:
    log = await mesh.spawn(Log, mailbox=2)
    held = asyncio.create_task(log.hold())
    while "hold begins" not in await log.peek():  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    patient = log.options(wait=True)
    sent: list[int] = []

    async def send() -> None:
        for i in range(10):
            await patient.tell.note(str(i))
            sent.append(i)

    sender = asyncio.create_task(send())
    while len(sent) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(sent) == 2
    held.cancel()
    await sender
    assert (await log.read())[-10:] == [str(i) for i in range(10)]


async def test_tells_that_wait_for_room_are_served_in_the_order_in_which_they_were_sent(mesh: Mesh) -> None:
    log = await mesh.spawn(Log, mailbox=2)
    held = asyncio.create_task(log.hold())
    await log.wait_for("hold begins")
    patient = log.options(wait=True)
    tells = [asyncio.ensure_future(patient.tell.note(f"{i}")) for i in range(12)]
    await asyncio.sleep(0)
    assert not tells[-1].done()
    held.cancel()
    await asyncio.gather(*tells)
    assert [note for note in await log.read() if note.isdigit()] == [f"{i}" for i in range(12)]


async def test_a_tell_waits_for_room_no_longer_than_its_timeout(mesh: Mesh) -> None:
    log = await mesh.spawn(Log, mailbox=2)
    held = asyncio.create_task(log.hold())
    await log.wait_for("hold begins")
    with contextlib.suppress(MailboxFull):
        while True:
            log.tell.note("before")
    for sender in (log, mesh.group([log])):
        async with asyncio.timeout(60):
            with pytest.raises(DeadlineExceeded, match=r"\.note found no room by its deadline"):
                await sender.options(wait=True, timeout=0.01).tell.note("given up")
    held.cancel()
    await log.options(wait=True, timeout=60).tell.note("after")
    notes = await log.read()
    assert notes[-1] == "after"
    assert "given up" not in notes


async def test_waiting_asks_are_all_answered_when_there_is_room(mesh: Mesh) -> None:
    counter = await mesh.spawn(Counter, mailbox=2)
    assert sorted(await asyncio.gather(*(counter.add(1) for _ in range(50)))) == list(range(1, 51))


async def test_what_cannot_be_sent_is_refused_at_the_sender() -> None:
    async with Mesh(nodes=2) as mesh:
        echo = await mesh.spawn(Echo)
        with pytest.raises(CodecError, match="@wire"):
            await echo.echo(object())
        with pytest.raises(CodecError, match="object"):
            await echo.unsendable()
        assert await echo.echo(1) == 1


async def test_an_oversized_message_is_refused_with_both_sizes() -> None:
    async with Mesh(nodes=2, max_message=1_000_000) as mesh:
        echo = await mesh.spawn(Echo)
        with pytest.raises(CodecError, match=r"8000\d\d\d bytes exceeds .* 1000000 bytes"):
            await echo.echo(np.zeros(1_000_000))
        assert (await echo.echo(np.zeros(100_000))).nbytes == 800_000


async def test_a_64_mib_message_arrives_while_others_flow() -> None:
    async with Mesh(nodes=2) as mesh:
        echo = await mesh.spawn(Echo)
        counter = await mesh.spawn(Counter)
        big = asyncio.create_task(echo.echo(np.ones(8 * 1024 * 1024)))
        while not big.done():
            await counter.add(1)
        assert (await big).sum() == 8 * 1024 * 1024


async def test_same_process_messages_are_not_copied() -> None:
    async with Mesh() as mesh:
        echo = await mesh.spawn(Echo)
        value = [object()]
        assert await echo.echo(value) is value
