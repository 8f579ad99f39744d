"""What a mesh says of itself: descriptions, times, warnings, and its window for other processes."""

import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
import socket
import statistics
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from zoo import Counter, Fragile, Log, Parent

from tinker_actors.actors import Actor, Mesh, RestartPolicy, concurrent
from tinker_actors.actors.histogram import HALVE_AT, TimeHistogram
from tinker_actors.actors.pulse import Pulse, Quiet


class Busy(Actor):
    """Takes its time in several ways."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def hold(self, gate: asyncio.Event) -> None:
        await gate.wait()

    @concurrent
    async def hold_beside(self, gate: asyncio.Event) -> None:
        await gate.wait()

    async def block(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251

    async def block_until(self, condition: Callable[[], bool]) -> None:
        block_until(condition)

    @concurrent
    async def block_until_beside(self, condition: Callable[[], bool]) -> None:
        block_until(condition)

    async def block_until_there(self, path: str, text: str) -> None:
        block_until(lambda: os.path.exists(path) and text in Path(path).read_text())

    @concurrent
    async def sleep_beside(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def drip(self, seconds: float) -> AsyncIterator[int]:
        await asyncio.sleep(seconds)
        yield 1


def block_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def reports(caplog: pytest.LogCaptureFixture, what: str) -> list[str]:
    """Warnings that the loop is blocked by that: on a busy machine it may be late for other reasons too."""
    messages = [record.getMessage() for record in caplog.records]
    return [message for message in messages if f" s by {what}" in message]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


# Descriptions


async def test_a_description_names_every_node_and_actor_with_its_numbers(mesh: Mesh) -> None:
    home = mesh.nodes - 1
    counter = await mesh.spawn(Counter, name="counter", mailbox=7)
    began = time.monotonic()
    for _ in range(5):
        await counter.add(1)
    assert [i async for i in counter.stream.count_to(3)] == [1, 2, 3]
    took = time.monotonic() - began
    described = await mesh.describe()
    assert described.pid == os.getpid()
    assert [(node.index, node.state, node.incarnation) for node in described.nodes] == [
        (index, "up", 1) for index in range(mesh.nodes)
    ]
    assert described.nodes[0].pid == os.getpid()
    for index, pid in mesh.pids.items():
        assert described.nodes[index].pid == pid
    for node in described.nodes:
        assert node.host == socket.gethostname()
        assert node.up_since is not None
        assert node.loop_lag is not None
        assert abs(time.time() - node.up_since) < 60
        assert 0 <= node.loop_lag < 30
        assert (node.bad_messages, node.dead_letters) == (0, 0)
        assert (node.rss or 0) > 10_000_000
        assert [(link.peer, link.up, link.unanswered) for link in node.links] == [
            (other, True, 0) for other in range(mesh.nodes) if other != node.index
        ]
    (actor,) = described.actors
    assert actor == described.actor("counter")
    assert (actor.name, actor.cls, actor.node, actor.state) == ("counter", "Counter", home, "running")
    assert (actor.mailbox, actor.mailbox_bound, actor.handled, actor.restarts) == (0, 7, 6, 0)
    assert actor.rate is not None
    assert actor.rate > 0
    assert actor.p50 is not None
    assert actor.p99 is not None
    assert 0 < actor.p50 <= actor.p99 < 1.125 * took
    with pytest.raises(LookupError):
        described.actor("nobody")
    with pytest.raises(dataclasses.FrozenInstanceError):
        described.pid = 1  # type: ignore[misc]


async def test_waiting_messages_children_and_restarts_are_shown(mesh: Mesh) -> None:
    log = await mesh.spawn(Log, name="log")
    held = [asyncio.ensure_future(log.hold(str(i))) for i in range(5)]
    parent = await mesh.spawn(Parent, name="parent")
    child: Any = await parent.spawn(None, RestartPolicy.on_failure(backoff=0.001), "kid")
    with contextlib.suppress(Exception):
        await child.breaks()
    await child.add(1)
    while "4" not in str((described := await mesh.describe()).actor("log").mailbox):  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    assert described.actor("log").handled == 0
    kid = described.actor("kid")
    assert described.actor("parent").children == (kid.id,)
    assert (kid.restarts, kid.state) == (1, "running")
    for task in held:
        task.cancel()
    await asyncio.gather(*held, return_exceptions=True)
    await log.read()
    assert (await mesh.describe()).actor("log").mailbox == 0


async def test_rates_are_taken_from_two_looks() -> None:
    async with Mesh(observe=False) as mesh:
        counter = await mesh.spawn(Counter)
        idle = await mesh.spawn(Counter, name="idle")
        await idle.add(1)
        await asyncio.sleep(0.55)
        before = time.monotonic()
        await mesh.describe()
        began = time.monotonic()
        for _ in range(300):
            await counter.add(1)
        await asyncio.sleep(0.55)
        ended = time.monotonic()
        described = await mesh.describe()
        after = time.monotonic()
        rate = described.actors[0].rate
        assert rate is not None
        assert 300 / (after - before) <= rate <= 300 / (ended - began)
        assert described.actor("idle").rate == 0


async def test_a_node_that_does_not_answer_is_silent_and_a_dead_one_down(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tinker_actors.actors.survey.ANSWER", 0.4)
    async with Mesh(nodes=3, restart=RestartPolicy.never()) as mesh:
        busy = await mesh.spawn(Busy, name="busy", node=1)
        await mesh.spawn(Fragile, name="fragile", node=2)
        os.kill(mesh.pids[2], 9)
        gate = tmp_path / "gate"
        blocked = asyncio.ensure_future(busy.block_until_there(str(gate), "open"))
        while (described := await mesh.describe()).nodes[1].state == "up" or described.nodes[2].state != "down":  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        silent, down = described.nodes[1:]
        assert (silent.state, silent.pid, silent.rss) == ("silent", mesh.pids[1], None)
        assert (down.state, down.pid) == ("down", None)
        assert (described.actor("busy").state, described.actor("busy").mailbox) == ("unknown", None)
        gate.write_text("open")
        await blocked
        monkeypatch.undo()
        assert (await mesh.describe()).nodes[1].state == "up"


async def test_what_waits_at_the_sender_is_shown_on_its_link() -> None:
    async with Mesh(nodes=2) as mesh:
        log = await mesh.spawn(Log, mailbox=2)
        held = [asyncio.ensure_future(log.hold(str(i))) for i in range(10)]
        while (link := (await mesh.describe()).nodes[0].links[0]).messages != 7:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        assert (link.unanswered, link.messages) == (3, 7)
        assert link.bytes > 7 * 10
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)


# Times


def test_quantiles_are_right_within_an_eighth_and_forget_the_distant_past() -> None:
    times = TimeHistogram()
    assert times.quantile(0.5) is None
    values = [1e-5 * 1.01**i for i in range(1000)]
    for value in values:
        times.record(value)
    assert times.quantile(0.5) == pytest.approx(statistics.median(values), rel=0.125)
    assert times.quantile(0.99) == pytest.approx(sorted(values)[990], rel=0.125)
    for extreme in (0.0, -1.0, 1e-12, 1e12):
        times.record(extreme)
    for _ in range(8 * HALVE_AT):
        times.record(0.002)
    assert times.quantile(0.01) == pytest.approx(0.002, rel=0.125)
    assert times.total < HALVE_AT


async def test_handler_times_and_counts_hold_over_long_series(mesh: Mesh) -> None:
    busy = await mesh.spawn(Busy, name="busy")
    longest = 0.0
    for _ in range(300):
        began = time.monotonic()
        await busy.sleep(0.001)
        longest = max(longest, time.monotonic() - began)
    began = time.monotonic()
    await asyncio.gather(*(busy.sleep_beside(0.001) for _ in range(50)))
    longest = max(longest, time.monotonic() - began)
    actor = (await mesh.describe()).actor("busy")
    assert actor.handled == 350
    assert actor.p50 is not None
    assert 0.0008 < actor.p50 < 1.125 * longest


# Warnings


async def test_a_slow_handler_is_named_once_while_it_runs(caplog: pytest.LogCaptureFixture) -> None:
    async with Mesh(observe=False, slow_handler=0.08) as mesh:
        busy = await mesh.spawn(Busy, name="busy")
        await busy.sleep(0.001)
        assert [i async for i in busy.stream.drip(0.3)] == [1]
        assert not caplog.records
        for method in (busy.hold, busy.hold_beside):
            told, gate = len(caplog.records), asyncio.Event()
            slow = [asyncio.ensure_future(method(gate)) for _ in range(2)]
            await until(lambda told=told: len(caplog.records) > told)
            assert not any(each.done() for each in slow)
            await asyncio.sleep(0.2)  # enough for a second warning
            gate.set()
            await asyncio.gather(*slow)
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == [
        "actor busy has been serving Busy.hold for over 0.08 s",
        "actor busy has been serving Busy.hold_beside for over 0.08 s",
    ]
    assert "locks.py" in caplog.records[0].getMessage()


@pytest.mark.parametrize("method", ["block_until", "block_until_beside"])
async def test_a_blocked_loop_is_reported_with_the_method_and_the_stack(
    caplog: pytest.LogCaptureFixture, method: str
) -> None:
    async with Mesh(observe=False, blocked_loop=0.1) as mesh:
        busy = await mesh.spawn(Busy, name="busy")
        await getattr(busy, method)(lambda: bool(reports(caplog, "Busy.")))
        again = time.monotonic() + 0.3
        await getattr(busy, method)(lambda: time.monotonic() > again)  # too soon after the first to be told again
        assert (await mesh.describe()).nodes[0].loop_lag > 0.1  # type: ignore[operator]
    (report,) = reports(caplog, "Busy.")
    assert f"Busy.{method} (actor busy)" in report
    assert "time.sleep(0.005)" in report


class Slow:
    """Says what is to be done about its methods where they block."""

    __blocking_advice__ = "give it a thread"

    def step(self, condition: Callable[[], bool]) -> None:
        block_until(condition)


async def test_a_blocked_loop_is_reported_with_the_method_and_advice_of_the_class_that_blocks_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Mesh(observe=False, blocked_loop=0.1):
        Slow().step(lambda: bool(reports(caplog, "Slow.step; give it a thread\n")))


class Held:
    """What others may keep alive."""


async def test_what_was_seen_of_a_blocked_loop_is_not_kept(caplog: pytest.LogCaptureFixture) -> None:
    async with Mesh(observe=False, blocked_loop=0.1):
        held = Held()
        gone = weakref.ref(held)
        block_until(lambda: bool(reports(caplog, "task ")))  # this coroutine goes on for longer than it holds that
        del held
        assert gone() is None
    assert "block_until(lambda: bool(reports" in reports(caplog, "task ")[0]


async def test_what_the_loop_does_ends_while_it_is_still_being_written_that_it_was_blocked() -> None:
    writing, ended = threading.Event(), threading.Event()

    class Slowly(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            writing.set()
            ended.wait(10.0)

    def held_until_it_is_written() -> weakref.ref[Held]:
        held = Held()
        assert writing.wait(10.0)
        return weakref.ref(held)

    handler, log = Slowly(), logging.getLogger("tinker_actors.actors.pulse")
    log.addHandler(handler)
    try:
        async with Mesh(observe=False, blocked_loop=0.1):
            gone = held_until_it_is_written()
            assert gone() is None
            ended.set()
    finally:
        ended.set()
        log.removeHandler(handler)


async def test_a_child_writes_such_warnings_to_its_log() -> None:
    async with Mesh(nodes=2, blocked_loop=0.1) as mesh:
        busy = await mesh.spawn(Busy, name="busy")
        log = str(Path(mesh.folder or "") / "1.1.log")
        await busy.block_until_there(log, " s by Busy.block_until_there (actor busy)")


async def test_a_process_that_was_suspended_is_not_reported_as_blocked() -> None:
    async with Mesh(nodes=2, blocked_loop=0.4) as mesh:
        counter = await mesh.spawn(Counter)
        os.kill(mesh.pids[1], signal.SIGSTOP)
        await asyncio.sleep(1.0)
        os.kill(mesh.pids[1], signal.SIGCONT)
        lag = next(node.loop_lag for node in (await mesh.describe()).nodes if node.index == 1)
        for _ in range(10):  # beats of its loop, and looks of the thread that watches them
            await counter.add(1)
            await asyncio.sleep(0.03)
        log = (Path(mesh.folder or "") / "1.1.log").read_text()
    assert lag is not None
    assert lag > 0.5
    assert "blocked" not in log


@pytest.mark.parametrize(("pauses", "reported"), [([0.25, 5.0, 0.25, 0.25], False), ([0.25] * 10, True)])
def test_a_loop_has_its_time_anew_once_its_process_goes_on(
    monkeypatch: pytest.MonkeyPatch, pauses: list[float], reported: bool
) -> None:
    """On a busy machine the thread that watches it may run twice before it does."""
    now, left, reports = 100.0, list(pauses), list[float]()

    class Ends:
        def wait(self, _: float) -> bool:
            nonlocal now
            now += left[0] if left else 0.0
            return not left or left.pop(0) < 0

    monkeypatch.setattr("tinker_actors.actors.pulse.time.monotonic", lambda: now)
    monkeypatch.setattr(Pulse, "_warn_blocked", lambda _, late: reports.append(late))
    pulse: Any = object.__new__(Pulse)
    pulse._period, pulse._beat_at, pulse._reported, pulse._ends = 0.25, now, False, Ends()
    pulse._watch(1.0)
    assert bool(reports) == reported


async def test_a_loop_that_turns_is_not_reported_and_nothing_is_when_switched_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Mesh(observe=False) as mesh:
        await (await mesh.spawn(Busy)).sleep(0)  # what is only imported once takes its time
    caplog.clear()
    async with Mesh(observe=False, blocked_loop=0.3) as mesh:
        busy = await mesh.spawn(Busy)
        await asyncio.gather(*(asyncio.to_thread(time.sleep, 0.6) for _ in range(2)), busy.sleep(0.6))
    async with Mesh(observe=False, blocked_loop=None) as mesh:
        await (await mesh.spawn(Busy)).block(0.6)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_warnings_about_one_thing_are_counted_rather_than_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("tinker_actors.actors.pulse.time.monotonic", lambda: now[0])
    quiet = Quiet()
    assert quiet.passes("a") == ""
    assert quiet.passes("a") is None
    assert quiet.passes("b") == ""
    assert quiet.passes("a") is None
    now[0] += 31
    assert quiet.passes("a") == " (2 more since the last such warning)"


@pytest.mark.parametrize("bad", [0, -1.0, float("nan")])
async def test_thresholds_that_mean_nothing_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="slow_handler"):
        Mesh(slow_handler=bad)
    with pytest.raises(ValueError, match="blocked_loop"):
        Mesh(blocked_loop=bad)
