"""Asks that are alone under way: whether their answers are looked for, and how."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, Self, cast

import pytest
from zoo import Counter

from tinker_actors.actors import Mesh, lookout
from tinker_actors.actors.lookout import ALONE, BLOCK, COUNTED, PAUSE, WARMING, Lookout, Odds

SHORTEST, LONGEST = BLOCK * lookout.SHORTEST, BLOCK * lookout.LONGEST  # asks


def asked(odds: Odds, *, looking: float, asleep: float, asks: int) -> list[bool]:
    """Whether each of some asks, one right after another, is looked for, if they take as long as given, in seconds."""
    chosen: list[bool] = []
    for _ in range(asks):
        chosen.append(odds.choose(1.0))
        odds.took(looking if chosen[-1] else asleep)
    return chosen


def test_the_first_asks_are_slept_for_the_next_not_timed_and_then_both_ways_are_tried() -> None:
    odds = Odds()
    assert asked(odds, looking=0.005, asleep=0.005, asks=WARMING) == [False] * ALONE + [True] * (WARMING - ALONE)
    chosen = asked(odds, looking=60e-6, asleep=140e-6, asks=3 * BLOCK)
    assert chosen == [True] * BLOCK + [False] * BLOCK + [True] * BLOCK


@pytest.mark.parametrize(("looking", "faster"), [(60e-6, True), (250e-6, False), (139e-6, False)])
def test_the_faster_way_is_taken_and_the_other_tried_again_ever_more_seldom(looking: float, faster: bool) -> None:
    odds = Odds()
    asked(odds, looking=looking, asleep=140e-6, asks=WARMING + 2 * BLOCK)
    for stretch in [2 * SHORTEST, 4 * SHORTEST] if faster else [SHORTEST, 2 * SHORTEST, 4 * SHORTEST]:
        chosen = asked(odds, looking=looking, asleep=140e-6, asks=stretch + BLOCK)
        assert chosen == [faster] * stretch + [not faster] * BLOCK
    asked(odds, looking=looking, asleep=140e-6, asks=10 * LONGEST)
    assert asked(odds, looking=looking, asleep=140e-6, asks=LONGEST + BLOCK).count(not faster) == BLOCK


def test_when_the_way_taken_becomes_slow_the_other_is_tried_at_once() -> None:
    odds = Odds()
    asked(odds, looking=60e-6, asleep=140e-6, asks=WARMING + 10 * LONGEST)
    asked(odds, looking=250e-6, asleep=140e-6, asks=2 * BLOCK)  # the block that was begun, and one to see it
    chosen = asked(odds, looking=250e-6, asleep=140e-6, asks=2 * BLOCK)
    assert chosen.count(True) < BLOCK


def test_neither_a_few_delays_nor_what_the_first_asks_in_a_way_took_change_it() -> None:
    odds = Odds()
    asked(odds, looking=60e-6, asleep=140e-6, asks=WARMING + 2 * BLOCK)
    for _ in range(4):
        asked(odds, looking=0.005, asleep=0.005, asks=BLOCK - COUNTED)
        assert all(asked(odds, looking=60e-6, asleep=140e-6, asks=COUNTED - 10))
        assert all(asked(odds, looking=1.0, asleep=140e-6, asks=10))


@pytest.mark.parametrize(("looking", "faster"), [(60e-6, True), (250e-6, False)])
def test_after_a_pause_asks_are_slept_for_again_and_then_taken_as_before_without_a_judgement(
    looking: float, faster: bool
) -> None:
    odds = Odds()
    asked(odds, looking=looking, asleep=140e-6, asks=WARMING + 2 * BLOCK + 1)
    assert odds.looks is faster
    chosen: list[bool] = []
    for i in range(WARMING):
        chosen.append(odds.choose(1.0 + 2 * PAUSE + i * PAUSE / 2))
        odds.took(0.01)
    assert chosen == [False] * ALONE + [faster] * (WARMING - ALONE)
    assert (odds.looking, odds.asleep) == (looking, 140e-6)


def test_asks_that_come_now_and_then_are_never_looked_for() -> None:
    odds = Odds()
    assert not any(odds.choose(2 * PAUSE * i) for i in range(1, 10 * WARMING))


@dataclass
class Target:
    """An actor of a class in a process."""

    kind: str = "Actor"
    node: int = 1

    @property
    def address(self) -> Self:
        return self


@dataclass
class Ask:
    """An ask under way."""

    target: Target
    future: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    done: bool = False

    def answer(self) -> None:
        self.done = True
        self.future.set_result(None)


class Inbound:
    """Gives an answer the so-manieth time that it is looked at."""

    def __init__(self, at: int | None) -> None:
        self.at, self.looked = at, 0
        self.pending: dict[int, Any] = {}

    def read(self) -> None:
        self.looked += 1
        if self.looked == self.at:
            self.pending.pop(1).answer()


def looking(at: int | None) -> tuple[Lookout, Inbound, Any]:
    inbound = Inbound(at)
    out = Lookout(asyncio.get_running_loop(), 60.0, inbound.pending)
    out.inbounds.append(cast(Any, inbound))
    ask: Any = Ask(Target())
    inbound.pending[1] = ask
    odds = Odds()
    for _ in range(ALONE):
        odds.choose(0.0)
    out._known[1, "Actor", "method"] = odds
    out.begin(ask, ask.target, "method", 0.0)
    return out, inbound, ask


async def test_an_answer_is_found_while_the_loop_goes_on_with_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookout, "perf_counter", lambda: 50e-6)
    out, inbound, ask = looking(at=10)
    turns = 0
    while not ask.done:
        await asyncio.sleep(0)
        turns += 1
    timed: list[float] = []
    monkeypatch.setattr(Odds, "took", lambda _, seconds: timed.append(seconds))
    out.end(ask)
    await asyncio.sleep(0)
    assert turns >= 10
    assert inbound.looked == 10
    assert timed == [50e-6]


@pytest.mark.parametrize("end", ["time", "another", "cancelled"])
async def test_looking_ends(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(lookout, "perf_counter", lambda: now)
    _, inbound, ask = looking(at=None)
    for _ in range(5):
        await asyncio.sleep(0)
    assert inbound.looked == 5
    match end:
        case "time":
            now = 61.0
        case "another":
            inbound.pending[2] = Ask(Target())
        case _:
            ask.future.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert inbound.looked <= 6


async def test_an_ask_that_is_to_be_slept_for_is_not_looked_for_because_one_before_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lookout, "perf_counter", lambda: 0.0)
    out, inbound, ask = looking(at=None)
    inbound.pending.pop(1).answer()  # noticed by the loop before the first look
    out.end(ask)
    monkeypatch.setattr(Odds, "choose", lambda odds, _: setattr(odds, "looks", False))
    other: Any = Ask(ask.target)
    inbound.pending[2] = other
    out.begin(other, other.target, "method", 0.0)
    for _ in range(3):
        await asyncio.sleep(0)
    assert inbound.looked == 0


async def test_one_core_or_a_mesh_that_does_not_want_it_never_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0}, raising=False)
    assert lookout.default_busy_poll() == 0
    with pytest.raises(ValueError, match="busy_poll is a time in seconds from 0 to"):
        Mesh(busy_poll=1)
    for busy_poll, asks in ((0.0, 0), (0.001, 20)):
        async with Mesh(nodes=2, busy_poll=busy_poll) as mesh:
            begun = 0
            choose = Odds.choose

            def counted(self: Odds, began: float, choose: Any = choose) -> bool:
                nonlocal begun
                begun += 1
                return choose(self, began)

            monkeypatch.setattr(Odds, "choose", counted)
            counter = await mesh.spawn(Counter, node=1)
            begun = 0
            for n in range(20):
                assert await counter.add(1) == n + 1
            assert begun == asks
            begun = 0
            await asyncio.gather(*(counter.add(0) for _ in range(10)))
            assert begun <= 1  # the rest are not alone
            monkeypatch.setattr(Odds, "choose", choose)


async def test_actors_of_one_class_in_one_process_are_judged_together_and_few_classes_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lookout, "KNOWN", 3)
    out = Lookout(asyncio.get_running_loop(), 60.0, {})

    def known_after(target: Target, method: str) -> int:
        ask: Any = Ask(target)
        out.begin(ask, cast(Any, target), method, 0.0)
        out.end(ask)
        return len(out._known)

    assert [known_after(Target(), "method"), known_after(Target(), "method")] == [1, 1]
    assert [known_after(Target(), "other"), known_after(Target("Other"), "method")] == [2, 3]
    assert known_after(Target(node=2), "method") == 1
