"""More adapters than places: the longest unused give way, never one that a running sample uses."""

import random
import shutil
import threading

import pytest
from sampling_harness import ask

from tinker_actors.errors import SamplingError
from tinker_actors.sampling import SamplingReply


def watched(engine):
    """The engine, whose network fails a test that takes an adapter from under a running row."""
    network, schedule = engine.residents.network, engine.engine._schedule
    original = network.unload
    wrong = []

    def unload(slot):
        wrong.extend(row for row in schedule.running if row.ticket.resident.slot == slot)
        original(slot)

    network.unload = unload
    engine.wrong = wrong
    return engine


def tokens(reply):
    assert isinstance(reply, SamplingReply), reply
    return [list(sample.tokens) for sample in reply.samples]


@pytest.mark.parametrize(("memory", "reads"), [(2**30, False), (0, True)], ids=["host", "disk"])
def test_many_adapters_in_two_places_each_answer_as_themselves(harness, publisher, memory, reads):  # A7
    adapters = [publisher.lora(f"p{i}", seed=i, rank=(2, 8, 16)[i % 3]) for i in range(6)]
    handles = [entry.handle for entry in adapters]
    engine = watched(harness(max_adapters=2, adapter_memory=memory, max_batch=6))
    engine.refresh(*handles)
    assert engine.residents.network.resident == 2
    rng = random.Random(3)
    requests, owners = [], []
    for _ in range(40):
        owners.append(rng.choice(adapters))
        prompt = tuple(rng.randrange(7, 103) for _ in range(rng.randint(1, 12)))
        requests.append(
            ask(owners[-1].handle, prompt, max_tokens=rng.randint(1, 6), temperature=0, default_stops=False)
        )
    replies = engine.serve(requests)
    for i in range(0, 40, 2):
        expected = owners[i].greedy(requests[i].prompt, requests[i].params.max_tokens)
        assert tokens(replies[i]) == [expected]
    counts = engine.residents.lodging.counts()
    assert not engine.wrong
    assert counts.placed == engine.residents.network.resident == 2
    assert counts.evicted >= 4
    assert (counts.read > 0) == reads
    assert (counts.in_host_memory > 0) != reads
    engine.engine.replace((), {}).result(timeout=60)
    engine.engine.replace((), {}).result(timeout=60)
    counts = engine.residents.lodging.counts()
    assert (counts.placed, counts.in_host_memory, engine.residents.network.resident) == (0, 0, 0)


def test_a_long_sample_keeps_its_adapter_while_others_want_its_place(harness, publisher):  # A4
    one, two = publisher.lora("one", seed=1), publisher.lora("two", seed=2)
    engine = watched(harness(max_adapters=1, adapter_memory=0))
    engine.refresh(one.handle, two.handle)
    long = ask(one.handle, "hello", max_tokens=40, temperature=0, default_stops=False)
    waits = ask(two.handle, "hello", max_tokens=4, temperature=0, default_stops=False)
    tickets = [engine.engine.submit(request) for request in (long, waits)]
    engine.engine.start()
    answers = [engine.answers.get(timeout=60) for _ in tickets]
    assert [tickets.index(ticket) for ticket, _ in answers] == [0, 1]
    assert not engine.wrong
    for (_, reply), request, owner in zip(answers, (long, waits), (one, two), strict=True):
        assert tokens(reply) == [owner.greedy(request.prompt, request.params.max_tokens)]


def test_an_adapter_that_many_ask_for_does_not_keep_another_out(harness, publisher):
    busy, rare = publisher.lora("busy", seed=1), publisher.lora("rare", seed=2)
    engine = harness(max_adapters=1, max_batch=2)
    engine.refresh(busy.handle, rare.handle)
    requests = [ask(busy.handle, "long", max_tokens=50, seed=0, default_stops=False)]
    requests += [ask(busy.handle, f"x{i}", max_tokens=4, seed=i, default_stops=False) for i in range(30)]
    requests.append(ask(rare.handle, "y", max_tokens=4, seed=1, default_stops=False))
    tickets = [engine.engine.submit(request) for request in requests]
    engine.engine.start()
    order = [tickets.index(engine.answers.get(timeout=60)[0]) for _ in tickets]
    assert order.index(31) < 6


def test_samples_go_on_while_an_adapter_is_read(harness, publisher):
    one, two = publisher.lora("one", seed=1), publisher.lora("two", seed=2)
    engine = harness(max_adapters=1, adapter_memory=0)
    engine.refresh(one.handle, two.handle)
    lodging, may_read = engine.residents.lodging, threading.Event()
    original = lodging._read

    def read(resident):
        assert may_read.wait(60)
        return original(resident)

    lodging._read = read
    waits = engine.engine.submit(ask(two.handle, "x", max_tokens=3, seed=1))
    (reply,) = engine.serve([ask(one.handle, "y", max_tokens=20, seed=1, default_stops=False)])
    assert len(reply.samples[0].tokens) == 20
    assert engine.engine.stats().waiting == 1
    may_read.set()
    ticket, reply = engine.answers.get(timeout=60)
    assert ticket is waits
    assert isinstance(reply, SamplingReply)


def test_an_adapter_that_is_gone_from_the_store_fails_its_requests_alone(harness, publisher):
    one, two = publisher.lora("one", seed=1), publisher.lora("two", seed=2)
    engine = harness(max_adapters=1, adapter_memory=0)
    engine.refresh(one.handle, two.handle)
    shutil.rmtree(publisher.store.fetch(two.snapshot))
    lost, good = engine.serve([ask(two.handle, "x", 2), ask(one.handle, "y")])
    assert isinstance(lost, SamplingError)
    assert "can't be loaded again" in str(lost)
    assert isinstance(good, SamplingReply)
    assert engine.engine.stats().failed == 1


def test_adapters_come_and_go_under_load_with_refreshes_and_cancellations(harness, publisher):  # A4, A7
    adapters = [publisher.lora("p", seed=i, step=i) for i in range(8)]
    engine = watched(harness(max_adapters=2, adapter_memory=40_000, max_batch=8, max_step_tokens=32))
    engine.engine.start()
    rng = random.Random(5)
    tickets = {}
    for cycle in range(100):
        served = rng.sample(adapters, 4)
        handles = [entry.handle for entry in served]
        engine.engine.replace(handles, engine.residents.check(handles)).result(timeout=60)
        for _ in range(3):
            owner = rng.choice(served)
            prompt = tuple(rng.randrange(7, 103) for _ in range(rng.randint(1, 8)))
            request = ask(owner.handle, prompt, max_tokens=rng.randint(1, 5), temperature=0, default_stops=False)
            tickets[engine.engine.submit(request)] = (owner, request)
        if cycle % 4 == 0:
            engine.engine.cancel(rng.choice(list(tickets)))
    left = sum(not ticket.closed for ticket in tickets)
    got = []
    while left > 0 or not engine.answers.empty():
        got.append(engine.answers.get(timeout=60))
        left = sum(ticket.samples[0] is None and not ticket.closed for ticket in tickets)
    engine.engine.replace((), {}).result(timeout=60)
    engine.engine.replace((), {}).result(timeout=60)
    while not engine.answers.empty():
        got.append(engine.answers.get())
    stats = engine.engine.stats()
    assert stats.requests + stats.cancelled == len(tickets)
    assert len(got) == stats.requests
    for ticket, reply in rng.sample(got, 20):
        owner, request = tickets[ticket]
        assert reply.snapshot == owner.handle
        assert tokens(reply) == [owner.greedy(request.prompt, request.params.max_tokens)]
    assert not engine.wrong
    assert engine.residents.network.resident == engine.residents.held() == 0
    assert engine.residents.lodging.counts().in_host_memory == 0
