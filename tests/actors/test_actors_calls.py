"""Deadlines, cancellation and cycles: what travels with a call."""

import asyncio

import pytest
from late_asks import ask_late
from zoo import Chain, Counter, Log

from tinker_actors.actors import Actor, AskCycleError, DeadlineExceeded, Mesh, deadline
from tinker_actors.actors.deadlines import CoarseTimer


async def test_a_timeout_ends_the_ask_and_cancels_the_handler(mesh: Mesh) -> None:
    log = await mesh.spawn(Log)
    assert "hold" in str(await ask_late(lambda seconds: log.options(timeout=seconds).hold(), log))
    assert await log.read() == ["hold begins", "hold cancelled"]


async def test_deadline_exceeded_is_a_timeout_error(mesh: Mesh) -> None:
    log = await mesh.spawn(Log)
    with pytest.raises(TimeoutError):
        await log.options(timeout=0.02).hold()


async def test_an_ambient_deadline_bounds_everything_in_its_block(mesh: Mesh) -> None:
    log = await mesh.spawn(Log)

    async def hold(seconds: float) -> None:
        async with deadline(seconds):
            await log.hold()

    await ask_late(hold, log)
    with pytest.raises(DeadlineExceeded):
        async with deadline(0.01):
            await asyncio.sleep(60)
    async with deadline(60):
        assert (await log.read())[-1] == "hold cancelled"


async def test_a_deadline_travels_with_nested_asks(mesh: Mesh) -> None:
    log = await mesh.spawn(Log, node=0)
    chain = await mesh.spawn(Chain)
    await ask_late(lambda seconds: chain.options(timeout=seconds).hold_other(log), log, "nested begins")
    await log.wait_for("nested cancelled")
    assert await log.read() == ["nested begins", "nested cancelled"]


async def test_a_handler_knows_the_deadline_of_whoever_asked_first(mesh: Mesh) -> None:
    """Also where no answer would be in vain yet: what it does can be bounded by it."""
    first, second = await mesh.spawn(Chain, node=0), await mesh.spawn(Chain)
    for route in ([], [second], [second, await mesh.spawn(Chain)]):
        left = await first.options(timeout=50.0).time_left(route)
        assert left is not None
        assert 0 < left <= 50.0
        assert await first.time_left(route) is None


async def test_an_inner_deadline_can_only_shorten(mesh: Mesh) -> None:
    log = await mesh.spawn(Log)
    chain = await mesh.spawn(Chain)
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(DeadlineExceeded):
        async with deadline(0.1):
            await chain.with_deadline(log, 60.0)
    assert loop.time() - began < 5
    with pytest.raises(DeadlineExceeded):
        await chain.options(timeout=60.0).with_deadline(log, 0.05)


async def test_deadlines_that_are_far_away_and_were_met_leave_nothing() -> None:
    timer = CoarseTimer(asyncio.get_running_loop())
    now = asyncio.get_running_loop().time()
    kept = []
    for number in range(20_000):
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        bucket = timer.add(future, now + 3600 + number * 0.01, "an ask")
        if number % 100:
            bucket.pop(future)
        else:
            kept.append(future)
    assert len(timer) < 5 * len(kept)
    soon: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    timer.add(soon, now, "what is due")
    with pytest.raises(DeadlineExceeded, match="what is due"):
        await soon
    assert not any(future.done() for future in kept)
    timer.close()


async def test_a_message_whose_deadline_has_passed_is_not_begun(mesh: Mesh) -> None:
    log = await mesh.spawn(Log)
    held = asyncio.create_task(log.hold())
    await log.wait_for("hold begins")
    with pytest.raises(DeadlineExceeded):
        await log.options(timeout=0.02).note("too late")
    await log.open()
    await held
    assert "too late" not in await log.read()


async def test_a_streams_deadline_ends_it(mesh: Mesh) -> None:
    log = await mesh.spawn(Log)

    async def read_slowly(seconds: float) -> None:
        async for _ in log.options(timeout=seconds).stream.numbers():
            await asyncio.sleep(0.01)

    await ask_late(read_slowly, log, "made 0")
    assert (await log.read())[-1] == "stream closed"


async def test_cancelling_an_ask_cancels_the_handler_and_the_actor_goes_on(mesh: Mesh) -> None:
    log = await mesh.spawn(Log)
    ask = asyncio.create_task(log.hold())
    await log.wait_for("hold begins")
    ask.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ask
    assert await log.read() == ["hold begins", "hold cancelled"]


async def test_cancelling_a_waiting_ask_takes_it_out_of_the_mailbox(mesh: Mesh) -> None:
    log = await mesh.spawn(Log)
    first = asyncio.create_task(log.hold("first"))
    await log.wait_for("first begins")
    second = asyncio.create_task(log.hold("second"))
    await log.peek()
    second.cancel()
    await asyncio.wait([second])
    await log.peek()
    await log.open()
    await first
    assert await log.read() == ["first begins", "first ends"]


async def test_cancelling_one_concurrent_ask_leaves_the_others(mesh: Mesh) -> None:
    log = await mesh.spawn(Log)
    asks = [asyncio.create_task(log.hold_beside(name)) for name in ("a", "b")]
    await log.wait_for("b begins")
    asks[0].cancel()
    await log.wait_for("a cancelled")
    await log.open()
    assert await asks[1] == "b"


async def test_of_two_waiters_on_one_reply_the_other_still_gets_it(mesh: Mesh) -> None:
    log = await mesh.spawn(Log)
    reply = asyncio.ensure_future(log.hold())
    waiters = [asyncio.create_task(_shielded(reply)) for _ in range(2)]
    await log.wait_for("hold begins")
    waiters[0].cancel()
    await log.open()
    assert await waiters[1] == "hold"


async def _shielded(reply: asyncio.Future[str]) -> str:
    return await asyncio.shield(reply)


async def test_after_one_task_of_a_group_failed_no_trace_of_the_other_appears(mesh: Mesh) -> None:
    log = await mesh.spawn(Log)

    async def fails() -> None:
        await log.wait_for("slow begins")
        raise RuntimeError("first")

    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(log.hold("slow"))
            group.create_task(fails())

    with pytest.raises(ExceptionGroup):
        await both()
    await log.open()
    assert await log.read() == ["slow begins", "slow cancelled"]


async def test_an_actor_that_asks_itself_is_refused_with_the_cycle(mesh: Mesh) -> None:
    chain = await mesh.spawn(Chain, name="ouroboros")
    with pytest.raises(AskCycleError, match=r"ouroboros\.ask_self -> ouroboros\.ping") as caught:
        await chain.ask_self()
    assert caught.value.cycle == ("ouroboros.ask_self", "ouroboros.ping")
    assert await chain.ping() == "pong"


async def test_a_cycle_through_other_actors_is_refused(mesh: Mesh) -> None:
    a, b, c = [await mesh.spawn(Chain, name=name, node=node) for name, node in (("a", 0), ("b", None), ("c", 0))]
    with pytest.raises(AskCycleError, match=r"b\.through -> c\.through -> b\.through"):
        await a.through([b, c, b])
    assert await a.through([b, c]) == "end"


async def test_a_stream_that_asks_its_reader_is_refused(mesh: Mesh) -> None:
    a = await mesh.spawn(Chain, name="a", node=0)
    b = await mesh.spawn(Chain, name="b")
    with pytest.raises(AskCycleError):
        await a.first_of(b)


async def test_asking_ones_own_concurrent_method_is_no_cycle(mesh: Mesh) -> None:
    chain = await mesh.spawn(Chain)
    assert await chain.ask_self_beside() == "beside"


async def test_a_task_that_outlives_its_handler_may_ask_the_actor(mesh: Mesh) -> None:
    log = await mesh.spawn(Log, node=0)
    chain = await mesh.spawn(Chain)
    await chain.options(timeout=60).ask_later(log)
    await chain.release()
    await log.wait_for("pong")


def test_a_message_can_not_take_a_name_of_the_base_class() -> None:
    with pytest.raises(TypeError, match="tell"):

        class Bad(Actor):
            async def tell(self) -> None: ...


async def test_two_actors_in_one_process_interleave() -> None:
    async with Mesh() as mesh:
        log, counter = await mesh.spawn(Log), await mesh.spawn(Counter)
        held = asyncio.create_task(log.hold())
        assert await counter.add(1) == 1
        await log.open()
        assert await held == "hold"
