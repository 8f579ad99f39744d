"""Who restarts with whom, how often, and what never waits behind a full mailbox."""

import asyncio
import contextlib
import logging
import os
import signal

import pytest
from company_zoo import Family
from zoo import Counter, Fragile, Log, Parent

from tinker_actors.actors import (
    ActorDiedError,
    ActorStoppedError,
    Lost,
    MailboxFull,
    Mesh,
    Restarted,
    RestartPolicy,
    Terminated,
)
from tinker_actors.actors.dead_letters import DeadLetters
from tinker_actors.actors.restart import RestartHistory

LIFE = ("started", "stopped", "started")
AGAIN = RestartPolicy.on_failure(backoff=0.0)


async def test_all_for_one_restarts_every_sibling_once(mesh: Mesh) -> None:
    log, family, stranger = await mesh.spawn(Log, node=0), await mesh.spawn(Family), await mesh.spawn(Fragile)
    children = await family.raise_children(log, [AGAIN] * 3)
    watches = [mesh.watch(child) for child in children]
    await mesh.group([*children, stranger]).ask.add(5)
    with pytest.raises(ActorDiedError, match="broken for good"):
        await children[0].breaks()
    events = [await anext(watch) for watch in watches]
    assert [(type(event), event.incarnation) for event in events] == [(Restarted, 2)] * 3  # type: ignore[union-attr]
    assert "they restart together: ActorFailure: broken" in str(events[1].reason)
    assert await mesh.group([*children, stranger]).ask.add(1) == [1, 1, 1, 6]
    assert sorted(await log.read()) == sorted([f"child{i} {what}" for i in range(3) for what in LIFE])


async def test_siblings_that_fail_at_the_same_moment_restart_once(mesh: Mesh) -> None:
    log, family = await mesh.spawn(Log, node=0), await mesh.spawn(Family)
    children = await family.raise_children(log, [RestartPolicy.on_failure(max_restarts=1, backoff=0.0)] * 3)
    for child in children:
        child.tell.breaks()
    await log.wait_for("child2 started", 2)
    assert await mesh.group(children).ask.add(1) == [1, 1, 1]
    assert sorted(await log.read()) == sorted([f"child{i} {what}" for i in range(3) for what in LIFE])


async def test_a_siblings_waiting_messages_survive_and_the_present_one_fails(mesh: Mesh) -> None:
    log, family = await mesh.spawn(Log, node=0), await mesh.spawn(Family)
    first, second = await family.raise_children(log, [AGAIN] * 2)
    held = asyncio.create_task(second.sleep())
    await log.wait_for("child1 sleeps")
    waiting = asyncio.create_task(second.add(1))
    await asyncio.sleep(0)
    first.tell.breaks()
    with pytest.raises(ActorDiedError, match="child0 failed, and they restart together"):
        await held
    assert await waiting == 1


async def test_each_sibling_follows_its_own_policy(mesh: Mesh) -> None:
    log, family = await mesh.spawn(Log, node=0), await mesh.spawn(Family)
    first, never = await family.raise_children(log, [AGAIN, RestartPolicy.never()])
    events = mesh.watch(never)
    first.tell.breaks()
    event = await anext(events)
    assert isinstance(event, Terminated)
    assert "they restart together" in str(event.reason)
    assert await first.add(1) == 1
    assert await family.raise_children(log, []) == []


async def test_beyond_its_intensity_a_family_ends_and_escalates(mesh: Mesh) -> None:
    log, family = await mesh.spawn(Log, node=0), await mesh.spawn(Family)
    first, second = await family.raise_children(log, [RestartPolicy.on_failure(max_restarts=1, backoff=0.0)] * 2)
    watches = [mesh.watch(actor) for actor in (first, second, family)]
    first.tell.breaks()
    await second.add(1)
    await log.wait_for("child1 started", 2)
    second.tell.breaks()
    kinds = [[type(event) async for event in watch] for watch in watches]
    assert kinds[0] == kinds[1] == [Restarted, Terminated]
    assert kinds[2] == [Terminated]


async def test_a_dead_process_restarts_the_siblings_in_others(pair: Mesh) -> None:
    log, family = await pair.spawn(Log, node=0), await pair.spawn(Family, node=0)
    children = await family.raise_children(log, [AGAIN] * 4)  # on nodes 0, 1, 2, 0
    watches = [pair.watch(child) for child in children]
    os.kill(pair.pids[1], signal.SIGKILL)
    events = [await anext(watch) for watch in watches]
    assert [type(event) for event in events] == [Restarted] * 4
    assert await pair.group(children).ask.add(1) == [1] * 4
    notes = await log.read()
    assert all(notes.count(f"child{i} started") == 2 for i in range(4))


async def test_restarts_before_and_after_a_process_died_count_together(pair: Mesh) -> None:
    fragile = await pair.spawn(Fragile, node=1, restart=RestartPolicy.on_failure(max_restarts=2, backoff=0.0))
    events = pair.watch(fragile)
    with pytest.raises(ActorDiedError):
        await fragile.breaks()
    assert isinstance(await anext(events), Restarted)
    os.kill(pair.pids[1], signal.SIGKILL)
    assert isinstance(await anext(events), Restarted)
    with pytest.raises(ActorDiedError):
        await fragile.breaks()
    assert isinstance(await anext(events), Terminated)


async def test_by_default_siblings_are_left_alone(mesh: Mesh) -> None:
    parent = await mesh.spawn(Parent)
    first, second = await parent.spawn(None, AGAIN), await parent.spawn(None, AGAIN)
    await second.add(5)
    with pytest.raises(ActorDiedError):
        await first.breaks()
    assert await first.add(1) == 1
    assert await second.add(1) == 6


def test_restarts_are_counted_in_a_sliding_window() -> None:
    history = RestartHistory(RestartPolicy.on_failure(max_restarts=2, within=10.0, backoff=1.0))
    assert [history.next_delay(now, failed=True) for now in (0.0, 9.0, 9.5)] == [1.0, 2.0, None]
    assert history.next_delay(10.0, failed=True) == 2.0  # the first has left the window
    assert history.next_delay(18.9, failed=True) is None
    assert history.next_delay(19.0, failed=True) == 2.0
    assert history.next_delay(100.0, failed=True) == 1.0


async def test_stop_cancel_and_watch_do_not_wait_behind_a_full_mailbox(mesh: Mesh) -> None:
    log = await mesh.spawn(Log, mailbox=2)
    held = asyncio.create_task(log.hold())
    await log.wait_for("hold begins")
    asks = [asyncio.create_task(log.note(str(i))) for i in range(50)]
    await asyncio.sleep(0)
    with contextlib.suppress(MailboxFull):
        while True:
            log.tell.note("more")
    asks[10].cancel()
    with pytest.raises(asyncio.CancelledError):
        await asks[10]
    events = mesh.watch(log)
    async with asyncio.timeout(60):
        await mesh.stop(log, drain=False)
        assert isinstance(await anext(events), Terminated)
    outcomes = await asyncio.gather(held, *asks, return_exceptions=True)
    assert outcomes.pop(11).__class__ is asyncio.CancelledError
    assert {type(outcome) for outcome in outcomes} == {ActorStoppedError}


async def test_an_actor_that_drains_long_keeps_no_other_from_being_stopped(mesh: Mesh) -> None:
    log, other = await mesh.spawn(Log), await mesh.spawn(Log)
    held = asyncio.create_task(log.hold())
    await log.wait_for("hold begins")
    stopping = asyncio.create_task(mesh.stop(log))
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        await mesh.stop(other)
    assert not stopping.done()
    held.cancel()
    await stopping


async def test_a_cancel_reaches_the_handler_past_a_full_mailbox(mesh: Mesh) -> None:
    log = await mesh.spawn(Log, mailbox=2)
    held = asyncio.create_task(log.hold())
    await log.wait_for("hold begins")
    asks = [asyncio.create_task(log.note(str(i))) for i in range(10)]
    await asyncio.sleep(0)
    held.cancel()
    await asyncio.gather(*asks)
    assert await log.read() == ["hold begins", "hold cancelled", *map(str, range(10))]


async def test_dead_letters_are_counted_by_what_became_of_them() -> None:
    async with Mesh(nodes=2) as mesh:
        fragile, log = await mesh.spawn(Fragile, node=0), await mesh.spawn(Log, node=0)
        log.tell.nothing()
        held = asyncio.create_task(log.hold())
        await log.wait_for("hold begins")
        log.tell.note("waits")
        fragile.tell.raises()
        await anext(mesh.watch(fragile))
        fragile.tell.add(1)
        await mesh.stop(log, drain=False)
        with pytest.raises(ActorStoppedError):
            await held
        away = await mesh.spawn(Fragile, node=1)
        hold = await mesh.spawn(Log, node=1)
        asks = [asyncio.create_task(hold.hold()) for _ in range(2)]
        await hold.wait_for("hold begins")
        hold.tell.note("lost with its process")
        away.tell.die()
        await asyncio.gather(*asks, return_exceptions=True)
        assert mesh.dead_letters_by_cause == {Lost.FAILED: 1, Lost.ENDED: 2, Lost.REFUSED: 1, Lost.NODE_DIED: 2}
        assert mesh.dead_letters == 6


async def test_a_handler_that_passes_on_another_actors_end_counts_as_failed(mesh: Mesh) -> None:
    counter, parent = await mesh.spawn(Counter, node=0), await mesh.spawn(Log, node=0)
    await mesh.stop(counter)
    before = mesh.dead_letters_by_cause.get(Lost.FAILED, 0)
    parent.tell.relay(counter)
    await anext(mesh.watch(parent))
    assert mesh.dead_letters_by_cause[Lost.FAILED] == before + 1


async def test_a_storm_of_dead_letters_is_one_line_a_second(caplog: pytest.LogCaptureFixture) -> None:
    letters = DeadLetters(asyncio.get_running_loop())
    with caplog.at_level(logging.WARNING):
        for i in range(1000):
            letters.add(f"tell {i}", ActorStoppedError("gone"))
        assert [record.getMessage() for record in caplog.records] == [
            "a tell was dropped or failed: tell 0: ActorStoppedError: gone"
        ]
        letters.close()
    assert caplog.records[-1].getMessage() == (
        "999 tells were dropped or failed; the last: tell 999: ActorStoppedError: gone"
    )
    assert letters.by_cause[Lost.ENDED] == letters.total == 1000
