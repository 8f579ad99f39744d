"""Groups: many actors asked, told and polled as one."""

import asyncio
import os
import signal

import numpy as np
import pytest
from late_asks import ask_late
from zoo import Chain, Counter, Echo, Fragile, Log

from tinker_actors.actors import (
    ActorDiedError,
    ActorRef,
    ActorStoppedError,
    AskCycleError,
    CodecError,
    DeadlineExceeded,
    Group,
    MailboxFull,
    Mesh,
    NodeDiedError,
    QuorumError,
)


async def test_an_ask_returns_every_members_result_in_order(mesh: Mesh) -> None:
    counters = [await mesh.spawn(Counter, start, node=start % mesh.nodes) for start in range(50)]
    group = mesh.group(counters)
    assert await group.ask.add(10) == list(range(10, 60))
    assert await group.ask.add(n=1) == list(range(11, 61))
    assert list(group) == counters
    assert len(group) == 50


async def test_a_member_may_be_in_a_group_twice(mesh: Mesh) -> None:
    counter = await mesh.spawn(Counter)
    assert await mesh.group([counter, counter]).ask.add(1) == [1, 2]


async def test_members_that_are_idle_busy_and_new_all_answer(mesh: Mesh) -> None:
    idle, new, busy, idle_too, new_too = logs = [await mesh.spawn(Log) for _ in range(5)]
    for log in (idle, busy, idle_too):
        await log.note("served")
    holding = asyncio.create_task(busy.hold())
    await busy.wait_for("hold begins")
    asking = asyncio.create_task(mesh.group(logs).options(timeout=60.0).ask.read())
    assert await mesh.group([new, idle, new_too]).options(timeout=60.0).ask.read() == [[], ["served"], []]
    holding.cancel()
    assert await asking == [["served"], [], ["served", "hold begins", "hold cancelled"], ["served"], []]


async def test_an_empty_group_answers_at_once(mesh: Mesh) -> None:
    group = mesh.group([])
    assert await group.ask.add(1) == []
    assert await group.settle.add(1) == []
    group.tell.add(1)
    with pytest.raises(ValueError, match="empty group"):
        await group.first.add(1)


async def test_the_first_error_ends_an_ask_and_cancels_the_others(mesh: Mesh) -> None:
    log, stopped = await mesh.spawn(Log), await mesh.spawn(Log)
    ask = asyncio.create_task(mesh.group([log, stopped]).ask.hold())
    await log.wait_for("hold begins")
    await stopped.wait_for("hold begins")
    await mesh.stop(stopped, drain=False)
    with pytest.raises(ActorStoppedError):
        await ask
    await log.wait_for("hold cancelled")


async def test_settle_puts_errors_in_their_members_places(mesh: Mesh) -> None:
    counter, fragile, stopped = await mesh.spawn(Counter), await mesh.spawn(Fragile), await mesh.spawn(Counter)
    await mesh.stop(stopped)
    outcomes = await mesh.group([counter, stopped, fragile]).settle.add(1)
    assert outcomes[0] == outcomes[2] == 1
    assert isinstance(outcomes[1], ActorStoppedError)
    (error,) = await mesh.group([fragile]).settle.raises("why")
    assert isinstance(error, ValueError)
    assert error.args == ("why", 7)


async def test_a_deadline_ends_an_ask_and_is_an_outcome_to_settle(mesh: Mesh) -> None:
    log, counter = await mesh.spawn(Log), await mesh.spawn(Log)
    await counter.open()
    group = mesh.group([log, counter])
    error = await ask_late(lambda seconds: group.options(timeout=seconds).ask.hold(), log)
    assert "hold of a group of 2" in str(error)
    await log.wait_for("hold cancelled")
    seconds = 0.05
    while not isinstance(answer := (outcomes := await group.options(timeout=seconds).settle.hold("again"))[1], str):
        assert isinstance(answer, DeadlineExceeded)
        seconds *= 4
    assert isinstance(outcomes[0], DeadlineExceeded)
    assert answer == "again"
    await log.wait_for("again cancelled")


async def test_options_of_a_group_add_up(mesh: Mesh) -> None:
    logs = [await mesh.spawn(Log) for _ in range(2)]
    group = mesh.group(logs).options(timeout=0.05).options(wait=False)
    with pytest.raises(DeadlineExceeded):
        await group.ask.hold()


async def test_cancelling_an_ask_cancels_every_handler(mesh: Mesh) -> None:
    logs = [await mesh.spawn(Log) for _ in range(3)]
    ask = asyncio.create_task(mesh.group(logs).ask.hold())
    for log in logs:
        await log.wait_for("hold begins")
    ask.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ask
    for log in logs:
        await log.wait_for("hold cancelled")


async def test_a_cancelled_ask_leaves_the_mailboxes_of_busy_members(mesh: Mesh) -> None:
    logs = [await mesh.spawn(Log) for _ in range(2)]
    holds = [asyncio.create_task(log.hold()) for log in logs]
    for log in logs:
        await log.wait_for("hold begins")
    ask = asyncio.create_task(mesh.group(logs).ask.note("never"))
    await asyncio.sleep(0)
    ask.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ask
    for log in logs:
        await log.open()
    await asyncio.gather(*holds)
    assert await mesh.group(logs).ask.read() == [["hold begins", "hold ends"]] * 2


async def test_first_and_quorum_take_the_first_answers_and_cancel_the_rest(mesh: Mesh) -> None:
    slow, *quick = [await mesh.spawn(Log) for _ in range(3)]
    for log in quick:
        await log.open()
    group = mesh.group([slow, *quick])
    assert await group.first.hold() == "hold"
    await slow.wait_for("hold cancelled")
    answers = await group.quorum(2).hold("q")
    assert answers == {quick[0]: "q", quick[1]: "q"}
    await slow.wait_for("q cancelled")


async def test_errors_end_first_and_quorum_only_when_too_few_are_left(mesh: Mesh) -> None:
    fragile, counter = await mesh.spawn(Fragile, name="fragile"), await mesh.spawn(Counter)
    group = mesh.group([fragile, counter])
    assert await group.first.value() == 0
    with pytest.raises(QuorumError, match=r"1 of 2 members failed, 2 answers are needed; fragile: AttributeError"):
        await group.quorum(2).value()
    with pytest.raises(QuorumError, match="2 of 2") as caught:
        await group.first.nothing()
    assert len(caught.value.errors) == 2
    with pytest.raises(ValueError, match="1 to 2"):
        group.quorum(3)


async def test_group_messages_keep_their_order_among_the_senders_others(mesh: Mesh) -> None:
    logs = [await mesh.spawn(Log) for _ in range(2)]
    group = mesh.group(logs)
    expected: list[str] = []
    for i in range(40):
        logs[0].tell.note(f"{i}a")
        group.tell.note(f"{i}b")
        expected += [f"{i}a", f"{i}b"]
        if i % 10 == 0:
            await group.ask.note(f"{i}c")
            expected.append(f"{i}c")
    first, second = await group.ask.read()
    assert first == expected
    assert second == [note for note in expected if not note.endswith("a")]


async def test_members_with_full_mailboxes_keep_their_order_too(mesh: Mesh) -> None:
    logs = [await mesh.spawn(Log, mailbox=2) for _ in range(2)]
    held = asyncio.create_task(logs[0].hold())
    await logs[0].wait_for("hold begins")
    group = mesh.group(logs)
    asks = [asyncio.create_task(group.ask.note(str(i))) for i in range(8)]
    await logs[1].wait_for("1")
    held.cancel()
    await asyncio.gather(*asks)
    for notes in await group.ask.read():
        assert [note for note in notes if note.isdigit()] == [str(i) for i in range(8)]


async def test_a_full_member_refuses_what_does_not_wait_and_the_others_get_it(mesh: Mesh) -> None:
    full, other = await mesh.spawn(Log, mailbox=1), await mesh.spawn(Log)
    held = asyncio.create_task(full.hold())
    await full.wait_for("hold begins")
    while True:
        try:
            full.tell.note("fill")
        except MailboxFull:
            break
    group = mesh.group([full, other])
    with pytest.raises(MailboxFull, match="1 of 2 members had no room for note"):
        group.tell.note("told")
    refused, _ = await group.options(wait=False).settle.note("asked")
    assert isinstance(refused, MailboxFull)
    assert await other.read() == ["told", "asked"]
    waiting = asyncio.ensure_future(group.options(wait=True).tell.note("waited"))
    held.cancel()
    await waiting
    await full.wait_for("waited")


async def test_a_group_ask_that_would_wait_for_itself_is_refused(mesh: Mesh) -> None:
    chain, other = await mesh.spawn(Chain, name="chain"), await mesh.spawn(Chain, name="other")
    with pytest.raises(AskCycleError, match=r"chain\.ask_all -> chain\.ping"):
        await chain.ask_all([other, chain])


async def test_members_give_their_places_back_with_their_answers_together_or_one_by_one(mesh: Mesh) -> None:
    first, last = [(await mesh.spawn(Log, mailbox=2)).options(timeout=60.0) for _ in range(2)]
    group = mesh.group([first, last]).options(timeout=60.0)  # what finds no place waits for one
    for _ in range(6):
        await group.ask.read()
    for times in range(1, 7):
        await first.note("there")
        asked = asyncio.create_task(group.ask.wait_for("there", times))
        await asyncio.sleep(0)
        await last.peek()
        await last.note("there")
        await asked


async def test_what_one_member_cannot_send_back_fails_only_that_member() -> None:
    async with Mesh(nodes=2) as mesh:
        echoes = [await mesh.spawn(Echo) for _ in range(3)]
        outcomes = await mesh.group(echoes).settle.unsendable()
        assert [type(outcome) for outcome in outcomes] == [CodecError] * 3
        counter = await mesh.spawn(Counter)
        value, error = await mesh.group([counter, echoes[0]]).settle.value_or_object()
        assert value == 0
        assert isinstance(error, CodecError)
        with pytest.raises(CodecError, match="@wire"):
            await mesh.group(echoes).ask.echo(object())
        assert await mesh.group(echoes).ask.echo(1) == [1, 1, 1]


async def test_large_arrays_go_to_each_process_once_and_come_back_from_every_member() -> None:
    async with Mesh(nodes=2, max_message=3_000_000) as mesh:
        echoes = [await mesh.spawn(Echo) for _ in range(6)]
        array = np.arange(100_000.0)
        answers = await mesh.group(echoes).ask.echo(array)  # 4.8 MB of answers, in messages of 3 MB at most
        for answer in answers:
            np.testing.assert_array_equal(answer, array)


async def test_a_process_that_dies_fails_its_members_at_once(pair: Mesh) -> None:
    logs = [await pair.spawn(Log, node=node) for node in (0, 1, 1, 2)]
    ask = asyncio.create_task(pair.group(logs).settle.hold())
    for log in logs:
        await log.wait_for("hold begins")
    before = pair.dead_letters
    os.kill(pair.pids[1], signal.SIGKILL)
    for log in (logs[0], logs[3]):
        await log.open()
    here, *dead, there = await ask
    assert here == there == "hold"
    assert [type(outcome) for outcome in dead] == [NodeDiedError] * 2
    assert pair.dead_letters == before
    with pytest.raises((ActorDiedError, NodeDiedError)):
        await pair.group(logs).ask.read()


async def test_members_ask_groups_across_processes(pair: Mesh) -> None:
    counters = [await pair.spawn(Counter, 1, node=node) for node in (0, 1, 2)]
    chain = await pair.spawn(Chain, node=1)
    assert await chain.sum_of(counters) == 3


def test_only_refs_make_a_group() -> None:
    with pytest.raises(TypeError, match="refs of actors, got int"):
        Group([1])  # type: ignore[list-item]
    with pytest.raises(AttributeError, match="private"):
        Group([]).ask._private()


async def test_a_ref_that_outlived_its_actor_is_a_failed_member(mesh: Mesh) -> None:
    counter, echo = await mesh.spawn(Counter), await mesh.spawn(Echo)
    await mesh.stop(counter)
    gone: ActorRef = await echo.echo(counter)
    (error,) = await mesh.group([gone]).settle.value()
    assert isinstance(error, ActorStoppedError)
