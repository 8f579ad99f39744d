"""Memory pressure, cancellations, refreshes and many adapters: nothing is lost and nothing changes what is sampled."""

import random
from dataclasses import replace

import pytest
from sampling_harness import ask

from tinker_actors.sampling import Overloaded, SamplingReply

TOKEN_BYTES = 2 * 2 * 64 * 4  # keys and values, two layers, 64 wide, float32


def samples(replies):
    return [[(sample.tokens, sample.logprobs) for sample in reply.samples] for reply in replies]


def test_preemption_changes_no_bit_of_what_is_sampled(harness, publisher):
    one = publisher.lora("one", seed=2)
    requests = [ask(one.handle, "p" * (i % 7 + 3), max_tokens=80, seed=i, default_stops=False) for i in range(8)]
    found = []
    for sequences in (16, 2):
        engine = harness(context_length=128, kv_memory=sequences * 128 * TOKEN_BYTES)
        engine.refresh(one.handle)
        found.append(samples(engine.serve(requests)))
        stats = engine.engine.stats()
        assert (stats.preempted > 0) == (sequences == 2)
        assert stats.kv_tokens == 0
    assert found[0] == found[1]


def test_a_turn_pays_for_its_new_tokens_and_gets_the_same_bits_as_without_a_cache(harness, publisher):
    one, two = publisher.lora("one", seed=2), publisher.lora("two", seed=3)
    talks = {}
    for caching in (True, False):
        engine = harness(context_length=256, prefix_caching=caching)
        engine.refresh(one.handle, two.handle)
        held, said, cached = tuple(range(9, 49)), [], []
        for _ in range(4):
            (reply,) = engine.serve([ask(one.handle, held, max_tokens=12, seed=5, default_stops=False)])
            said.append(samples([reply]))
            cached.append(reply.cached_tokens)
            held = (*held, *reply.samples[0].tokens, *range(60, 80))
        talks[caching] = said
        # what was sampled last is not computed until it is asked for
        assert cached == ([0, 51, 83, 115] if caching else [0] * 4)
        (other,) = engine.serve([ask(two.handle, held, max_tokens=2)])
        assert other.cached_tokens == 0  # A1: another snapshot's
    assert talks[True] == talks[False]


def test_a_prompt_that_parts_from_another_takes_over_what_they_share_with_the_same_bits(harness, publisher):
    one = publisher.lora("one", seed=2)
    shared = tuple(range(9, 49))
    found = []
    for caching in (True, False):
        engine = harness(context_length=128, prefix_caching=caching)
        engine.refresh(one.handle)
        replies = []
        for end in ((60, 61), (70, 71, 72), (80,)):
            replies += engine.serve([ask(one.handle, (*shared, *end), max_tokens=8, seed=5, default_stops=False)])
        assert [reply.cached_tokens for reply in replies] == ([0, 40, 40] if caching else [0, 0, 0])
        found.append(samples(replies))
    assert found[0] == found[1]


def test_64_adapters_in_random_order_equal_each_served_alone(harness, publisher):
    adapters = [publisher.lora(f"p{i}", seed=i, rank=(2, 4, 8, 16)[i % 4]) for i in range(64)]
    rng = random.Random(0)
    prompts = [tuple(rng.randrange(7, 103) for _ in range(rng.randint(1, 24))) for _ in range(256)]
    requests = [
        ask(adapters[i % 64].handle, prompt, max_tokens=rng.randint(1, 8), temperature=0)
        for i, prompt in enumerate(prompts)
    ]
    engine = harness()
    engine.refresh(*(entry.handle for entry in adapters))
    order = rng.sample(range(256), 256)
    together = dict(zip(order, engine.serve([requests[i] for i in order]), strict=True))
    for i in rng.sample(range(256), 48):
        alone = harness(prefix_caching=False)
        alone.refresh(adapters[i % 64].handle)
        assert samples(alone.serve([requests[i]])) == samples([together[i]])
        alone.engine.stop()


def test_nothing_is_lost_over_a_thousand_requests_with_cancellations_refreshes_and_little_memory(harness, publisher):
    adapters = [publisher.lora("p", seed=i, step=i) for i in range(4)]
    engine = harness(kv_memory=64 * 6 * TOKEN_BYTES, max_batch=24, max_step_tokens=48)
    engine.refresh(adapters[0].handle, adapters[1].handle)
    engine.engine.start()
    rng = random.Random(1)
    waiting, served, current = set(), 0, 0
    for number in range(1000):
        if number % 100 == 99:
            current = rng.randrange(3)
            handles = (adapters[current].handle, adapters[current + 1].handle)
            engine.engine.replace(handles, engine.residents.check(handles)).result(timeout=60)
        prompt = tuple(rng.randrange(7, 103) for _ in range(rng.randint(1, 40)))
        handle = adapters[current + rng.randrange(2)].handle
        request = ask(handle, prompt, rng.choice((1, 1, 3)), max_tokens=rng.randint(1, 10), seed=number)
        waiting.add(engine.engine.submit(request))
        if rng.random() < 0.2:
            gone = rng.choice(sorted(waiting, key=lambda ticket: ticket.seed))
            engine.engine.cancel(gone)
        while len([ticket for ticket in waiting if not ticket.closed]) > 60:
            _ticket, answer = engine.answers.get(timeout=60)
            assert isinstance(answer, SamplingReply)
            served += 1
    while engine.engine.stats().waiting or engine.engine.stats().running:
        _ticket, answer = engine.answers.get(timeout=60)
        served += isinstance(answer, SamplingReply)
    engine.engine.replace((), {}).result(timeout=60)
    engine.engine.replace((), {}).result(timeout=60)
    stats = engine.engine.stats()
    assert stats.requests + stats.cancelled == 1000
    assert stats.failed == 0
    assert stats.kv_tokens == stats.kv_cached == 0
    assert engine.engine._schedule.memory.extents.taken == 0
    assert engine.residents.network.resident == 0


def test_beyond_what_may_wait_a_request_is_refused_with_a_time_to_ask_again(harness, publisher):
    one = publisher.lora("one", seed=2)
    engine = harness(max_waiting=3)
    engine.refresh(one.handle)
    engine.engine.submit(ask(one.handle, "x", 2))
    with pytest.raises(Overloaded, match="2 samples wait, at most 3 may") as refused:
        engine.engine.submit(ask(one.handle, "y", 2))
    first = refused.value.retry_after
    assert first > 0
    engine.engine.start()
    engine.answers.get(timeout=60)
    with pytest.raises(Overloaded) as again:
        engine.engine.submit(ask(one.handle, "y", 400))
    rate = engine.engine._meter.samples / engine.engine._meter.busy
    assert again.value.retry_after == pytest.approx(min(60, 400 / rate), rel=0.5, abs=0.1)  # by what it has measured
    assert engine.engine.stats().refused == 2


def answered(engine, tickets):
    engine.engine.start()
    return [tickets.index(engine.answers.get(timeout=60)[0]) for _ in tickets]


def test_requests_of_a_higher_priority_go_first(harness, publisher):
    one = publisher.lora("one", seed=2)
    engine = harness(max_batch=1)
    engine.refresh(one.handle)
    requests = [replace(ask(one.handle, f"x{i}", max_tokens=2), priority=i % 3) for i in range(6)]
    order = answered(engine, [engine.engine.submit(request) for request in requests])
    assert [requests[i].priority for i in order] == [2, 2, 1, 1, 0, 0]


def test_a_higher_priority_takes_the_memory_of_a_running_sample_which_then_gets_the_same_bits(harness, publisher):
    one = publisher.lora("one", seed=2)
    low = ask(one.handle, "x", max_tokens=40, seed=1, default_stops=False)
    high = replace(ask(one.handle, "y", max_tokens=40, seed=2, default_stops=False), priority=1)
    calm = harness()
    calm.refresh(one.handle)
    wanted = calm.serve([low, high])
    tickets = []

    def begun(told):
        if len(tickets) == 1:
            tickets.append(engine.engine.submit(high))

    engine = harness(kv_memory=64 * TOKEN_BYTES, progress=begun)
    engine.refresh(one.handle)
    tickets.append(engine.engine.submit(low, streams=True))
    engine.engine.start()
    answers = [engine.answers.get(timeout=60) for _ in range(2)]
    assert [ticket for ticket, _ in answers] == tickets[::-1]
    assert engine.engine.stats().preempted == 1
    assert [(reply.samples[0].tokens, reply.samples[0].logprobs) for _, reply in answers] == [
        (reply.samples[0].tokens, reply.samples[0].logprobs) for reply in wanted[::-1]
    ]


def test_adapters_without_a_job_share_alike(harness, publisher):
    many, few = publisher.lora("many", seed=2), publisher.lora("few", seed=3)
    engine = harness(max_batch=2)
    engine.refresh(many.handle, few.handle)
    requests = [ask(many.handle, f"x{i}", max_tokens=4, default_stops=False) for i in range(20)]
    requests += [ask(few.handle, f"y{i}", max_tokens=4, default_stops=False) for i in range(2)]
    order = answered(engine, [engine.engine.submit(request) for request in requests])
    assert max(order.index(20), order.index(21)) < 6


def test_a_job_with_few_requests_does_not_wait_for_one_with_many(harness, publisher):
    one = publisher.lora("one", seed=2)
    engine = harness(max_batch=2)
    engine.refresh(one.handle)
    requests = [replace(ask(one.handle, f"x{i}", max_tokens=4, default_stops=False), job="many") for i in range(20)]
    requests += [replace(ask(one.handle, f"y{i}", max_tokens=4, default_stops=False), job="few") for i in range(2)]
    order = answered(engine, [engine.engine.submit(request) for request in requests])
    assert max(order.index(20), order.index(21)) < 6


def test_times_are_told_by_snapshot(harness, publisher):
    one, two = publisher.lora("one", seed=2), publisher.lora("two", seed=3)
    engine = harness()
    engine.refresh(one.handle, two.handle)
    engine.serve([ask(one.handle, "x", max_tokens=5, default_stops=False), ask(two.handle, "y", max_tokens=1)])
    stats = engine.engine.stats().by_snapshot
    assert stats[one.handle].token_seconds.p50 > 0
    assert stats[two.handle].token_seconds.p50 == 0
    assert all(entry.first_token_seconds.p99 > entry.queue_seconds.p50 > 0 for entry in stats.values())
