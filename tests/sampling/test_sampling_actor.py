import asyncio
import random
import threading

import pytest
from sampling_harness import TOKENIZER, ask
from tests.sampling.held_steps import hold_steps, when_cancelled, when_refreshed

from tinker_actors.actors import Mesh
from tinker_actors.data import TurnEnd
from tinker_actors.errors import ConfigError, ContextOverflowError, UnknownPolicyError
from tinker_actors.models import load_base
from tinker_actors.sampling import Sampler, SamplingReply
from tinker_actors.sampling import sampler as sampler_module


def options(publisher, **others):
    return {"base_model": "tiny-llama", "store": str(publisher.store.root), **others}


async def begun(sampler):
    """Wait until it has drawn a token."""
    async with asyncio.timeout(60):
        while not (await sampler.stats()).generated_tokens:
            pass


async def test_many_asks_are_answered_from_shared_batches(publisher):
    one, two = publisher.lora("p", seed=1), publisher.lora("q", seed=2)
    async with Mesh() as mesh:
        sampler = await mesh.spawn(Sampler, **options(publisher))
        await sampler.refresh([one.handle, two.handle])
        requests = [ask((one, two)[i % 2].handle, f"hello {i % 5}", max_tokens=3, seed=i) for i in range(100)]
        replies = await asyncio.gather(*(sampler.sample(request) for request in requests))
        for i, (request, reply) in enumerate(zip(requests, replies, strict=True)):
            expected = (one, two)[i % 2].logprobs(request.prompt, reply.samples[0].tokens)
            assert reply.samples[0].logprobs == pytest.approx(expected, abs=1e-5)
        stats = await sampler.stats()
    assert stats.requests == 100
    assert stats.snapshots == (one.handle, two.handle)
    assert stats.occupancy > 10
    assert stats.tokens_per_second > 0


async def test_the_same_seed_gives_the_same_group_on_any_number_of_samplers(publisher):  # C12
    one = publisher.lora("p", seed=1)
    async with Mesh() as mesh:
        samplers = [await mesh.spawn(Sampler, **options(publisher)) for _ in range(2)]
        for sampler in samplers:
            await sampler.refresh([one.handle])

        async def group(workers):
            asks = [workers[i % len(workers)].sample(ask(one.handle, "hi", max_tokens=8, seed=i)) for i in range(8)]
            return [reply.samples[0].tokens for reply in await asyncio.gather(*asks)]

        alone, shared = await group(samplers[:1]), await group(samplers)
    assert alone == shared
    assert len(set(alone)) > 1


async def test_the_loop_goes_on_while_a_sampler_starts(publisher, monkeypatch):
    begun, goes_on = threading.Event(), threading.Event()
    build = sampler_module.Engine

    def engine(**arguments):
        begun.set()
        assert goes_on.wait(10), "the loop stood still"
        return build(**arguments)

    monkeypatch.setattr(sampler_module, "Engine", engine)
    async with Mesh() as mesh:
        starting = asyncio.create_task(mesh.spawn(Sampler, **options(publisher)))
        await asyncio.to_thread(begun.wait, 60)
        goes_on.set()
        await starting


async def test_typed_errors_reach_the_asker_and_others_are_served(publisher):
    one = publisher.lora("p", seed=1)
    async with Mesh() as mesh:
        sampler = await mesh.spawn(Sampler, **options(publisher, context_length=16))
        with pytest.raises(UnknownPolicyError, match="not loaded"):
            await sampler.sample(ask(one.handle, "x"))
        await sampler.refresh([one.handle])
        replies = await asyncio.gather(
            sampler.sample(ask(one.handle, (9,) * 17)),
            sampler.sample(ask(one.handle, (9,) * 12, max_tokens=8, default_stops=False)),
            sampler.sample(ask("tinker://p/sampler_weights/000099", "x")),
            return_exceptions=True,
        )
    assert isinstance(replies[0], ContextOverflowError)
    assert isinstance(replies[2], UnknownPolicyError)
    assert isinstance(replies[1], SamplingReply)
    assert replies[1].samples[0].end is TurnEnd.CONTEXT_OVERFLOW
    assert len(replies[1].samples[0].tokens) == 4


async def test_a_cancelled_ask_frees_its_rows(publisher, monkeypatch):
    one = publisher.lora("p", seed=1)
    hold_steps(monkeypatch, {20: when_cancelled(monkeypatch)})
    async with Mesh() as mesh:
        sampler = await mesh.spawn(Sampler, **options(publisher))
        await sampler.refresh([one.handle])
        long = asyncio.create_task(
            sampler.sample(ask(one.handle, "x", max_tokens=500, default_stops=False, num_samples=3))
        )
        await begun(sampler)
        long.cancel()
        with pytest.raises(asyncio.CancelledError):
            await long
        await sampler.sample(ask(one.handle, "y", max_tokens=1))
        stats = await sampler.stats()
    assert stats.cancelled == 1
    assert stats.requests == 1
    assert stats.generated_tokens < 1400


async def test_a_deadline_ends_an_ask_and_frees_its_rows(publisher, monkeypatch):
    one = publisher.lora("p", seed=1)
    hold_steps(monkeypatch, {20: when_cancelled(monkeypatch)})
    async with Mesh() as mesh:
        sampler = await mesh.spawn(Sampler, **options(publisher))
        await sampler.refresh([one.handle])
        seconds = 0.05
        while not (await sampler.stats()).cancelled:  # an ask may be late before it is begun
            with pytest.raises(TimeoutError):
                await sampler.options(timeout=seconds).sample(
                    ask(one.handle, "x", max_tokens=500, default_stops=False, num_samples=3)
                )
            seconds *= 4
            await sampler.sample(ask(one.handle, "y", max_tokens=1))
        assert (await sampler.stats()).cancelled == 1


async def test_a_refresh_is_served_while_requests_run(publisher, monkeypatch):
    one, two = publisher.lora("p", seed=1), publisher.lora("p", seed=2)
    async with Mesh() as mesh:
        sampler = await mesh.spawn(Sampler, **options(publisher))
        await sampler.refresh([one.handle])
        request = ask(one.handle, "x", max_tokens=400, default_stops=False, seed=1)
        refreshed = threading.Event()
        hold_steps(monkeypatch, {20: when_refreshed(monkeypatch), 21: refreshed})
        long = asyncio.create_task(sampler.sample(request))
        await begun(sampler)
        await sampler.refresh([two.handle])
        assert not long.done()
        refreshed.set()
        reply = await long
        assert reply.snapshot == one.handle
        expected = one.logprobs(request.prompt, reply.samples[0].tokens)
        assert reply.samples[0].logprobs == pytest.approx(expected, abs=1e-5)
        with pytest.raises(UnknownPolicyError):
            await sampler.sample(request)


async def test_a_sampler_in_another_process_answers_the_same(publisher):
    one = publisher.lora("p", seed=1)
    request = ask(one.handle, "hello", max_tokens=8, seed=3, num_samples=2)
    async with Mesh(nodes=2) as mesh:
        here = await mesh.spawn(Sampler, **options(publisher), node=0)
        there = await mesh.spawn(Sampler, **options(publisher), node=1)
        await asyncio.gather(here.refresh([one.handle]), there.refresh([one.handle]))
        first, second = await asyncio.gather(here.sample(request), there.sample(request))
        with pytest.raises(ContextOverflowError, match="513 tokens; the context holds 512"):
            await there.sample(ask(one.handle, (9,) * 513))
    assert [sample.tokens for sample in first.samples] == [sample.tokens for sample in second.samples]
    assert second.samples[0].text == TOKENIZER.decode(second.samples[0].tokens, skip_special=True)


def test_settings_that_cannot_work_are_refused(publisher):
    with pytest.raises(ConfigError, match="max_batch is 0"):
        Sampler(**options(publisher, max_batch=0))


async def test_nothing_is_lost_among_cancellations_and_refreshes(publisher):
    published = [publisher.lora("p", seed=seed) for seed in range(4)]
    handles = [entry.handle for entry in published]
    rng = random.Random(0)
    async with Mesh() as mesh:
        sampler = await mesh.spawn(Sampler, **options(publisher, max_batch=16))
        await sampler.refresh(handles[:2])

        async def one(number):
            for _ in range(rng.randrange(30)):
                await asyncio.sleep(0)
            request = ask(
                handles[number % 4], f"{number % 7}", max_tokens=rng.randrange(1, 12), num_samples=rng.randrange(1, 4)
            )
            return request, await sampler.sample(request)

        asks = [asyncio.create_task(one(number)) for number in range(300)]
        for step in range(12):
            await sampler.refresh([handles[step % 4], handles[(step + 1) % 4]])
            for task in rng.sample(asks, 4):
                task.cancel()
        outcomes = await asyncio.gather(*asks, return_exceptions=True)
        await sampler.refresh([])
        stats = await sampler.stats()
    served = 0
    cancelled = sum(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
    for outcome in outcomes:
        if isinstance(outcome, (asyncio.CancelledError, UnknownPolicyError)):
            continue
        request, reply = outcome
        served += 1
        assert len(reply.samples) == request.num_samples
        owner = published[handles.index(reply.snapshot)]
        assert reply.snapshot == request.snapshot
        sample = reply.samples[-1]
        assert sample.logprobs == pytest.approx(owner.logprobs(request.prompt, sample.tokens), abs=1e-5)
    assert served > 50
    # an ask may be cancelled while its answer is on the way
    assert served <= stats.requests <= served + cancelled - stats.cancelled
    assert (stats.failed, stats.waiting, stats.snapshots) == (0, 0, ())


async def test_a_sampler_that_keeps_no_base_serves_adapters_and_full_weights(publisher):
    lora, full = publisher.lora("p", seed=1), publisher.full("q", seed=2)
    load_base("tiny-llama").release()
    async with Mesh() as mesh:
        sampler = await mesh.spawn(Sampler, **options(publisher, keep_base=False, max_adapters=1))
        await sampler.refresh([lora.handle, full.handle])
        for entry in (lora, full):
            request = ask(entry.handle, "hello", max_tokens=4, seed=1)
            reply = await sampler.sample(request)
            expected = entry.logprobs(request.prompt, reply.samples[0].tokens)
            assert reply.samples[0].logprobs == pytest.approx(expected, abs=1e-5)
        with pytest.raises(ConfigError, match="max_adapters is 0; an integer >= 1"):
            await mesh.spawn(Sampler, **options(publisher, max_adapters=0))
