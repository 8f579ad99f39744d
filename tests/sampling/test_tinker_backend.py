import asyncio

import pytest
from sampling_harness import BASE, END, TOKENIZER, ask
from tinker_stand_in import KEY, Service, serving

from tinker_actors.actors import Mesh
from tinker_actors.data import TurnEnd
from tinker_actors.errors import ConfigError, ContextOverflowError, PolicyError, SamplingError, UnknownPolicyError
from tinker_actors.sampling import InvalidRequestError, Overloaded, SampledToken, SamplingRequest
from tinker_actors.sampling.backends import TinkerSampler, TinkerSettings

pytestmark = pytest.mark.sdk


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("TINKER_API_KEY", KEY)


@pytest.fixture
def one(publisher):
    return publisher.lora("p", seed=1, step=3)


@pytest.fixture
def two(publisher):
    return publisher.lora("q", seed=2, rank=8)


@pytest.fixture
async def service(one, two):
    trained_there = "tinker://abc:train:0/sampler_weights/step-000012"
    made = Service({one.handle: one.model, two.handle: two.model, trained_there: one.model})
    async with serving(made) as made.url:
        yield made


@pytest.fixture
async def mesh(service):  # ends before it
    async with Mesh() as made:
        yield made


async def spawn(mesh, service, publisher=None, **settings):
    return await mesh.spawn(
        TinkerSampler,
        base_model=BASE,
        store=None if publisher is None else str(publisher.store.root),
        settings=TinkerSettings(url=service.url, **{"context_length": 64} | settings),
    )


async def test_tokens_and_log_probs_are_those_of_the_snapshot_that_was_asked_for(mesh, publisher, service, one, two):
    sampler = await spawn(mesh, service, publisher)
    await sampler.refresh([one.handle, two.handle])
    asked = [ask((one, two)[i % 2].handle, f"hello {i}", max_tokens=6, seed=i, num_samples=2) for i in range(4)]
    replies = await asyncio.gather(*(sampler.sample(request) for request in asked))
    for i, (request, reply) in enumerate(zip(asked, replies, strict=True)):
        source = (one, two)[i % 2]
        assert (reply.snapshot, reply.snapshot_step, reply.seed) == (source.handle, (3, 0)[i % 2], i)
        assert reply.cached_tokens == len(request.prompt) // 2
        for sample in reply.samples:
            assert sample.logprobs == pytest.approx(source.logprobs(request.prompt, sample.tokens), abs=1e-5)
    assert (await sampler.stats()).requests == 4
    assert {body["sampling_params"]["seed"] for body in service.bodies} == {0, 1, 2, 3}


async def test_what_was_trained_there_needs_no_store_and_tells_its_step_by_its_name(mesh, service, one):
    sampler = await spawn(mesh, service)
    handle = "tinker://abc:train:0/sampler_weights/step-000012"
    await sampler.refresh([handle])
    request = ask(handle, "hi", max_tokens=4, temperature=0, default_stops=False)
    reply = await sampler.sample(request)
    assert list(reply.samples[0].tokens) == one.greedy(request.prompt, 4)
    assert (reply.snapshot, reply.snapshot_step) == (handle, 12)


async def test_scores_of_prompts_and_targets(mesh, service, one):
    sampler = await spawn(mesh, service)
    await sampler.refresh([one.handle])
    prompt, targets = tuple(TOKENIZER.encode("1+2=")), tuple(TOKENIZER.encode("33"))
    request = SamplingRequest(prompt=prompt, snapshot=one.handle, targets=targets, prompt_logprobs=True)
    reply = await sampler.sample(request)
    assert reply.samples == ()
    assert reply.prompt_logprobs == pytest.approx(one.logprobs(prompt[:1], prompt[1:]), abs=1e-5)
    assert reply.target_logprobs == pytest.approx(one.logprobs(prompt, targets), abs=1e-5)


async def test_tokens_are_told_once_they_are_there_and_the_most_likely_ones_with_them(mesh, service, one):
    sampler = await spawn(mesh, service)
    await sampler.refresh([one.handle])
    request = ask(one.handle, "hi", num_samples=2, max_tokens=3, default_stops=False, logprobs=2)
    *told, reply = [item async for item in sampler.stream.sample_tokens(request)]
    assert all(isinstance(token, SampledToken) for token in told)
    for index, sample in enumerate(reply.samples):
        assert tuple(token.token for token in told if token.index == index) == sample.tokens
        assert sample.top_logprobs[0][0][0] == one.greedy(request.prompt, 1)[0]
        assert len(sample.top_logprobs) == 3


async def test_samples_end_by_this_packages_rules(mesh, service, one):
    sampler = await spawn(mesh, service)
    await sampler.refresh([one.handle])
    free = await sampler.sample(ask(one.handle, "x", max_tokens=8, temperature=0, default_stops=False))
    text = TOKENIZER.decode(free.samples[0].tokens)
    # a stop string goes with stop ids, which the protocol can't say: what comes after it is dropped
    cut = await sampler.sample(ask(one.handle, "x", max_tokens=8, temperature=0, stop=(text[2],)))
    first = text.index(text[2])
    assert (cut.samples[0].text, cut.samples[0].end) == (text[:first], TurnEnd.STOP)
    assert cut.samples[0].tokens == free.samples[0].tokens[: first + 1]
    assert len(cut.samples[0].logprobs) == first + 1
    assert service.bodies[-1]["sampling_params"]["stop"] == [END]
    alone = await sampler.sample(ask(one.handle, "x", max_tokens=8, stop=("@@",), default_stops=False))
    assert service.bodies[-1]["sampling_params"]["stop"] == ["@@"]
    assert alone.samples[0].end is TurnEnd.LENGTH
    full = await sampler.sample(ask(one.handle, (9,) * 62, max_tokens=8, default_stops=False))
    assert (full.samples[0].end, len(full.samples[0].tokens)) == (TurnEnd.CONTEXT_OVERFLOW, 2)
    with pytest.raises(ContextOverflowError, match="65 tokens; the context holds 64"):
        await sampler.sample(ask(one.handle, (9,) * 65))


async def test_an_unknown_snapshot_is_refused_and_what_was_served_stays(mesh, service, one):
    sampler = await spawn(mesh, service)
    with pytest.raises(UnknownPolicyError, match="not loaded"):
        await sampler.sample(ask(one.handle, "x"))
    await sampler.refresh([one.handle])
    with pytest.raises(UnknownPolicyError, match="not served by the Tinker service"):
        await sampler.refresh(["tinker://p/sampler_weights/000099"])
    with pytest.raises(PolicyError, match="no handle"):
        await sampler.refresh(["tinker://p/weights/000001"])
    assert (await sampler.sample(ask(one.handle, "x", max_tokens=1))).snapshot == one.handle


async def test_what_the_protocol_has_no_field_for_is_refused_by_name(mesh, service, one):
    sampler = await spawn(mesh, service)
    await sampler.refresh([one.handle])
    for params, said in (
        ({"min_p": 0.1}, r"min_p is 0\.1"),
        ({"repetition_penalty": 1.2}, r"repetition_penalty is 1\.2"),
        ({"logit_bias": ((1, 1.0),)}, "logit_bias"),
        ({"grammar": "x"}, "grammar is 'x'"),
    ):
        with pytest.raises(InvalidRequestError, match=said):
            await sampler.sample(ask(one.handle, "x", **params))
    assert not service.bodies


async def test_failures_are_typed(mesh, service, one):
    sampler = await spawn(mesh, service, max_waiting=2)
    await sampler.refresh([one.handle])
    with pytest.raises(Overloaded):
        await sampler.sample(ask(one.handle, "x", num_samples=3))
    service.failure = {"error": "no such token", "category": "user"}
    with pytest.raises(InvalidRequestError, match="no such token"):
        await sampler.sample(ask(one.handle, "x"))
    service.failure = {"error": "out of memory", "category": "server"}
    (done,) = [pairs async for pairs in sampler.stream.sample_together([ask(one.handle, "x")])]
    assert type(done[0][1]) is SamplingError
    assert "out of memory" in str(done[0][1])


async def test_a_busy_service_is_asked_again(mesh, service, one):
    service.pauses = 1
    sampler = await spawn(mesh, service)
    await sampler.refresh([one.handle])
    assert (await sampler.sample(ask(one.handle, "x", max_tokens=1))).snapshot == one.handle
    assert service.pauses == 0


async def test_the_loop_is_free_while_the_service_works(mesh, service, one):
    sampler = await spawn(mesh, service)
    await sampler.refresh([one.handle])
    service.held = asyncio.Event()
    tasks = [asyncio.create_task(sampler.sample(ask(one.handle, "x", max_tokens=1))) for _ in range(2)]
    while len(service.bodies) < 2:
        service.asked.clear()
        await service.asked.wait()
    tasks[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]
    service.held.set()
    assert (await tasks[1]).snapshot == one.handle
    stats = await sampler.stats()
    assert (stats.requests, stats.cancelled, stats.running) == (1, 1, 0)


async def test_its_session_is_finished_with_the_sampler(mesh, service, one):
    sampler = await spawn(mesh, service)
    await sampler.refresh([one.handle])
    await mesh.stop(sampler)
    assert len(service.finished) == 1


async def test_a_snapshot_of_another_base_model_is_refused(mesh, service, one, monkeypatch):
    service.base_model = "another"
    sampler = await spawn(mesh, service)
    with pytest.raises(PolicyError, match="base model 'another' at the Tinker service; base_model is 'tiny-llama'"):
        await sampler.refresh([one.handle])
    named = await spawn(mesh, service, base_model="another")
    await named.refresh([one.handle])
    monkeypatch.delenv("TINKER_API_KEY")
    with pytest.raises(ConfigError, match="'TINKER_API_KEY', which is not set"):
        await spawn(mesh, service)
