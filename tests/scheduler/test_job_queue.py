"""The queue: what starts, what stops, and that nobody starves, over random histories."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinker_actors.errors import JobError
from tinker_actors.scheduler.queue import Held, Plan, Quota, Reservation, Rules, Waiting, never_fits, plan
from tinker_actors.scheduler.resources import NAMES, Ledger, Resources, total

CAPACITY = Resources(devices=4, memory=16, adapter_slots=3, cpu_workers=6)
needs = st.builds(
    lambda d, m, a, c: Resources(devices=d, memory=m, adapter_slots=a, cpu_workers=c),
    st.integers(0, 5),
    st.integers(0, 18),
    st.integers(0, 3),
    st.integers(0, 6),
)


def cpu(number: int) -> Resources:
    return Resources(cpu_workers=number)


@dataclass
class Machine:
    """Serves a queue as a scheduler does, without processes."""

    capacity: Resources
    rules: Rules
    waiting: dict[str, Waiting] = field(default_factory=dict)
    running: dict[str, Held] = field(default_factory=dict)
    reservation: Reservation | None = None
    starts: int = 0
    number: int = 0
    refused: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.capacity)

    def submit(self, need: Resources, tenant: str = "a", priority: int = 0) -> str:
        self.number += 1
        job = f"{tenant}{self.number}"
        self.waiting[job] = Waiting(
            job=job, tenant=tenant, need=need, priority=priority, number=self.number, since=self.starts
        )
        return job

    def tick(self) -> Plan:
        decided = plan(
            list(self.waiting.values()),
            list(self.running.values()),
            self.capacity,
            self.rules,
            starts=self.starts,
            reservation=self.reservation,
        )
        self.reservation = decided.reservation
        for job in decided.impossible:
            del self.waiting[job]
            self.refused.add(job)
        for job in decided.stop:
            held = self.running[job]
            assert not held.leaving
            self.running[job] = Held(**{**fields_of(held), "leaving": True})
        for job in decided.start:
            entry = self.waiting.pop(job)
            self.starts += 1
            self.ledger.take(job, self.starts, entry.need)  # raises where there is not enough
            kept = {name: getattr(entry, name) for name in ("job", "tenant", "need", "priority", "since")}
            self.running[job] = Held(**kept, start=self.starts)
        return decided

    def end(self, job: str) -> None:
        held = self.running.pop(job)
        assert self.ledger.release(job, held.start)
        assert not self.ledger.release(job, held.start)
        if held.leaving:  # it was stopped for another one, and waits again
            self.number += 1
            kept = {name: getattr(held, name) for name in ("job", "tenant", "need", "priority", "since")}
            self.waiting[job] = Waiting(**kept, number=self.number)

    def usage(self, tenant: str) -> Resources:
        return total(held.need for held in self.running.values() if held.tenant == tenant)


def fields_of(held: Held) -> dict[str, object]:
    names = ("job", "tenant", "need", "priority", "since", "start", "leaving")
    return {name: getattr(held, name) for name in names}


@given(
    jobs=st.lists(st.tuples(needs, st.sampled_from("abc"), st.integers(0, 3)), min_size=1, max_size=30),
    seed=st.integers(0, 10_000),
    preempt=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_whatever_comes_nothing_is_over_allocated_and_everything_that_can_run_does(
    jobs: list[tuple[Resources, str, int]], seed: int, preempt: bool
):
    quotas = {"b": Quota(most=Resources(devices=2, memory=16, adapter_slots=3, cpu_workers=4), jobs=2)}
    machine = Machine(CAPACITY, Rules(quotas=quotas, ageing=4, preempt=preempt))
    draw = Random(seed)
    queue = list(jobs)
    ran: set[str] = set()
    turns = 0
    while queue or machine.waiting or machine.running:
        turns += 1
        assert turns < 3000
        if queue and draw.random() < 0.6:
            need, tenant, priority = queue.pop()
            machine.submit(need, tenant, priority)
        elif machine.running:
            job = draw.choice(sorted(machine.running))
            if not machine.running[job].leaving:
                ran.add(job)
            machine.end(job)
        machine.tick()
        assert total(held.need for held in machine.running.values()).fits(CAPACITY)
        assert machine.usage("b").fits(quotas["b"].most or CAPACITY)
        assert len([held for held in machine.running.values() if held.tenant == "b"]) <= 2
        # work-conserving: if nothing runs, nothing that could run waits
        assert machine.running or not machine.waiting
    assert machine.ledger.free == CAPACITY
    impossible = {
        f"{tenant}{number}"
        for number, (need, tenant, _) in enumerate(reversed(jobs), 1)
        if never_fits(need, tenant, CAPACITY, machine.rules)
    }
    if not preempt:  # else numbers are given anew
        assert machine.refused == impossible
    assert len(ran) + len(machine.refused) == len(jobs)


@given(
    seed=st.integers(0, 100_000),
    rival=st.integers(0, 2),
    tenants=st.integers(1, 3),
    preempt=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_a_large_job_is_not_starved_by_an_endless_stream_of_small_ones(
    seed: int, rival: int, tenants: int, preempt: bool
):
    machine = Machine(cpu(4), Rules(ageing=4, preempt=preempt))
    draw = Random(seed)
    for _ in range(4):
        machine.submit(cpu(draw.randint(1, 2)))
    machine.tick()
    large = machine.submit(cpu(4))
    before = machine.starts
    # to outrank those above takes `ageing * (rival + 1)` starts; what is queued or passes by then takes its turns too
    bound = before + 4 * (rival + 1) + 4 * 4
    while large not in machine.running:
        while len(machine.waiting) < 4:
            machine.submit(cpu(draw.randint(1, 2)), draw.choice("abc"[:tenants]), draw.randint(0, rival))
        machine.end(draw.choice(sorted(machine.running)))
        machine.tick()
        assert machine.starts <= bound


@given(
    waiting=st.lists(st.tuples(needs, st.sampled_from("ab"), st.integers(0, 2)), max_size=12), seed=st.integers(0, 99)
)
@settings(max_examples=50, deadline=None)
def test_a_plan_depends_on_neither_the_order_nor_the_time(waiting: list[tuple[Resources, str, int]], seed: int):
    queue = [
        Waiting(job=str(number), tenant=tenant, need=need, priority=priority, number=number)
        for number, (need, tenant, priority) in enumerate(waiting)
    ]
    first = plan(queue, [], CAPACITY, Rules(), starts=0)
    Random(seed).shuffle(queue)
    assert plan(queue, [], CAPACITY, Rules(), starts=0) == first


def test_small_jobs_pass_the_head_only_where_that_costs_it_nothing():
    machine = Machine(cpu(4), Rules())
    first, second = machine.submit(cpu(2)), machine.submit(cpu(1))
    machine.tick()
    large, small = machine.submit(cpu(3)), machine.submit(cpu(1))
    machine.tick()
    assert small in machine.running  # 3 and 1 fit beside each other
    other = machine.submit(cpu(1))
    machine.end(second)
    machine.tick()
    assert other in machine.waiting  # 3, 1 and 1 don't
    machine.end(first)
    machine.tick()
    assert large in machine.running


def test_an_impossible_request_never_blocks_the_head():
    machine = Machine(cpu(2), Rules())
    impossible, possible = machine.submit(cpu(3), priority=9), machine.submit(cpu(2))
    decided = machine.tick()
    assert decided.start == (possible,)
    assert decided.impossible == {
        impossible: "resources.cpu_workers is 3, but all that there is is cpu_workers 2: at most that can be asked for"
    }


def test_a_tenant_at_its_quota_bars_nobody_else():
    machine = Machine(cpu(4), Rules(quotas={"a": Quota(most=cpu(2)), "c": Quota(jobs=1)}))
    mine = [machine.submit(cpu(2), "a", priority=5) for _ in range(2)]
    small = machine.submit(cpu(1), "c"), machine.submit(cpu(1), "c")
    other = machine.submit(cpu(1), "b")
    assert machine.tick().start == (mine[0], small[0], other)
    machine.end(mine[0])
    assert machine.tick().start == (mine[1],)


def test_tenants_share_by_their_weights():
    machine = Machine(cpu(6), Rules(quotas={"a": Quota(weight=2.0)}))
    for _ in range(6):
        machine.submit(cpu(1), "a")
    for _ in range(6):
        machine.submit(cpu(1), "b")
    machine.tick()
    assert (machine.usage("a"), machine.usage("b")) == (cpu(4), cpu(2))


def test_as_few_as_will_do_are_stopped_the_lowest_and_youngest_first():
    machine = Machine(cpu(4), Rules())
    low = [machine.submit(cpu(1)) for _ in range(2)]
    large = machine.submit(cpu(2), priority=1)
    machine.tick()
    assert len(machine.running) == 3
    one = machine.submit(cpu(1), priority=2)
    assert machine.tick().stop == (low[1],)
    assert machine.tick().stop == ()  # it is on its way
    machine.end(low[1])
    assert machine.tick().start == (one,)
    # two of the low ones' size are needed: stopping the large one alone does
    machine.submit(cpu(2), priority=3)
    assert set(machine.tick().stop) == {large}
    machine.submit(cpu(1), priority=0)
    assert machine.tick().stop == ()


def test_nobody_takes_what_the_head_counts_on_while_room_is_made_for_it():
    machine = Machine(cpu(4), Rules())
    machine.submit(cpu(1), priority=9)
    low = machine.submit(cpu(2))
    machine.tick()
    head, small = machine.submit(cpu(3), priority=5), machine.submit(cpu(1))
    decided = machine.tick()
    assert (decided.stop, decided.start) == ((low,), ())
    machine.end(low)
    assert machine.tick().start == (head,)
    assert small in machine.waiting


def test_nothing_is_stopped_where_it_would_not_help_or_is_not_wanted():
    for rules, priority in ((Rules(preempt=False), 5), (Rules(), 0)):
        machine = Machine(cpu(2), rules)
        machine.submit(cpu(1))
        machine.submit(cpu(1), priority=1)
        machine.tick()
        machine.submit(cpu(2), priority=priority)
        assert machine.tick().stop == ()
    machine = Machine(cpu(2), Rules())
    machine.submit(cpu(1))
    machine.submit(cpu(1), priority=9)
    machine.tick()
    machine.submit(cpu(2), priority=5)
    assert machine.tick().stop == ()


def test_resources_are_checked():
    with pytest.raises(ValueError, match=r"resources\.devices is -1; a whole number of at least 0 is needed"):
        Resources(devices=-1)
    with pytest.raises(ValueError, match=r"resources\.memory is 1\.5"):
        Resources(memory=1.5)  # pyright: ignore[reportArgumentType]
    for wrong in ({"weight": 0.0}, {"jobs": 0}):
        with pytest.raises(ValueError, match=rf"quota\.{next(iter(wrong))} is 0"):
            Quota(**wrong)
    ledger = Ledger(cpu(1))
    ledger.take("a", 1, cpu(1))
    assert ledger.take("a", 1, cpu(1)).amount == cpu(1)
    with pytest.raises(JobError, match="too little cpu_workers"):
        ledger.take("b", 1, cpu(1))
    assert NAMES == ("devices", "memory", "adapter_slots", "cpu_workers")
