import asyncio
import os
import re
import signal
import sys
from pathlib import Path

import psutil
import pytest
from sampling_harness import BASE, END, TOKENIZER, ask
from vllm_stand_in import StandIn, error, serving

from tinker_actors.actors import Mesh
from tinker_actors.data import TurnEnd
from tinker_actors.errors import ConfigError, ContextOverflowError, PolicyError, SamplingError, UnknownPolicyError
from tinker_actors.models import load_base
from tinker_actors.sampling import (
    EngineDiedError,
    InvalidRequestError,
    Overloaded,
    SampledToken,
    SamplingParams,
    SamplingRequest,
)
from tinker_actors.sampling.backends import VllmSampler, VllmSettings


@pytest.fixture
def base():
    return load_base(BASE).skeleton()


@pytest.fixture
async def stand_in(base):
    made = StandIn(base)
    async with serving(made) as url:
        made.url = url
        yield made


@pytest.fixture
async def mesh():
    async with Mesh() as made:
        yield made


async def spawn(mesh, publisher, stand_in, **settings):
    chosen = VllmSettings(url=stand_in.url, start_timeout=10, **settings)
    return await mesh.spawn(VllmSampler, base_model=BASE, store=str(publisher.store.root), settings=chosen)


async def test_tokens_and_log_probs_are_those_of_the_snapshot_that_was_asked_for(mesh, publisher, stand_in):
    one, two = publisher.lora("p", seed=1, step=3), publisher.lora("q", seed=2, rank=8)
    sampler = await spawn(mesh, publisher, stand_in)
    await sampler.refresh([one.handle, two.handle])
    asked = [ask((one, two)[i % 2].handle, f"hello {i}", max_tokens=6, temperature=0.7) for i in range(6)]
    replies = await asyncio.gather(*(sampler.sample(request) for request in asked))
    for i, (request, reply) in enumerate(zip(asked, replies, strict=True)):
        source = (one, two)[i % 2]
        assert reply.snapshot == source.handle
        assert reply.snapshot_step == (3, 0)[i % 2]
        assert reply.seed is None
        expected = source.logprobs(request.prompt, reply.samples[0].tokens, temperature=0.7)
        assert reply.samples[0].logprobs == pytest.approx(expected, abs=1e-5)
        assert reply.samples[0].text == TOKENIZER.decode(
            [token for token in reply.samples[0].tokens if token != END], skip_special=True
        )
    stats = await sampler.stats()
    assert (stats.requests, stats.running) == (6, 0)
    assert stats.snapshots == (one.handle, two.handle)


async def test_greedy_samples_of_a_group_are_the_same_one(mesh, publisher, stand_in):
    one = publisher.lora("p", seed=1)
    sampler = await spawn(mesh, publisher, stand_in)
    await sampler.refresh([one.handle])
    request = ask(one.handle, "hi", num_samples=3, max_tokens=5, temperature=0, default_stops=False)
    reply = await sampler.sample(request)
    assert [list(sample.tokens) for sample in reply.samples] == [one.greedy(request.prompt, 5)] * 3
    expected = one.logprobs(request.prompt, reply.samples[0].tokens)
    assert reply.samples[0].logprobs == pytest.approx(expected, abs=1e-5)


async def test_scores_of_prompts_and_targets(mesh, publisher, stand_in):
    one = publisher.lora("p", seed=1)
    sampler = await spawn(mesh, publisher, stand_in)
    await sampler.refresh([one.handle])
    prompt, targets = tuple(TOKENIZER.encode("1+2=")), tuple(TOKENIZER.encode("33"))
    reply = await sampler.sample(
        SamplingRequest(prompt=prompt, snapshot=one.handle, targets=targets, prompt_logprobs=True)
    )
    assert reply.samples == ()
    assert reply.prompt_logprobs == pytest.approx(one.logprobs(prompt[:1], prompt[1:]), abs=1e-5)
    assert reply.target_logprobs == pytest.approx(one.logprobs(prompt, targets), abs=1e-5)
    with pytest.raises(InvalidRequestError, match=r"temperature is 0\.5; 1, or 0"):
        await sampler.sample(
            SamplingRequest(prompt=prompt, snapshot=one.handle, targets=targets, params=SamplingParams(temperature=0.5))
        )


async def test_streamed_tokens_are_those_of_the_reply(mesh, publisher, stand_in):
    one = publisher.lora("p", seed=1)
    sampler = await spawn(mesh, publisher, stand_in)
    await sampler.refresh([one.handle])
    request = ask(one.handle, "hi", num_samples=2, max_tokens=4, default_stops=False)
    *told, reply = [item async for item in sampler.stream.sample_tokens(request)]
    for index, sample in enumerate(reply.samples):
        own = [token for token in told if token.index == index]
        assert all(isinstance(token, SampledToken) for token in own)
        assert tuple(token.token for token in own) == sample.tokens
        assert tuple(token.logprob for token in own) == sample.logprobs
        expected = one.logprobs(request.prompt, sample.tokens)
        assert sample.logprobs == pytest.approx(expected, abs=1e-5)


async def test_the_most_likely_tokens_come_with_each(mesh, publisher, stand_in):
    one = publisher.lora("p", seed=1)
    sampler = await spawn(mesh, publisher, stand_in)
    await sampler.refresh([one.handle])
    request = ask(one.handle, "hi", max_tokens=3, default_stops=False, logprobs=2)
    (sample,) = (await sampler.sample(request)).samples
    for place, tops in enumerate(sample.top_logprobs):
        before = (*request.prompt, *sample.tokens[:place])
        assert len(tops) == 2
        assert tops[0][0] == one.greedy(before, 1)[0]
        for token, logprob in tops:
            assert logprob == pytest.approx(one.logprobs(before, (token,))[0], abs=1e-5)


async def test_samples_end_by_this_packages_rules(mesh, publisher, stand_in):
    one = publisher.lora("p", seed=1)
    sampler = await spawn(mesh, publisher, stand_in)
    await sampler.refresh([one.handle])
    bias = tuple((token, 100.0) for token in TOKENIZER.encode("a"))
    reply = await sampler.sample(ask(one.handle, "x", max_tokens=6, stop=("aaa",), logit_bias=bias))
    assert reply.samples[0].end is TurnEnd.STOP
    assert reply.samples[0].text == ""
    assert len(reply.samples[0].tokens) == len(reply.samples[0].logprobs) == 3
    reply = await sampler.sample(ask(one.handle, "x", max_tokens=3, logit_bias=((END, 100.0),)))
    assert reply.samples[0].tokens == (END,)
    assert reply.samples[0].end is TurnEnd.STOP
    reply = await sampler.sample(ask(one.handle, "x", max_tokens=3, logit_bias=bias))
    assert reply.samples[0].end is TurnEnd.LENGTH
    assert reply.samples[0].text == "aaa"
    full = await sampler.sample(ask(one.handle, (9,) * 62, max_tokens=8, default_stops=False))
    assert full.samples[0].end is TurnEnd.CONTEXT_OVERFLOW
    assert len(full.samples[0].tokens) == 2
    none = await sampler.sample(ask(one.handle, (9,) * 64, max_tokens=8))
    assert none.samples[0].tokens == ()
    with pytest.raises(ContextOverflowError, match="65 tokens; the context holds 64"):
        await sampler.sample(ask(one.handle, (9,) * 65, max_tokens=8))


async def test_the_base_model_is_never_asked_for(mesh, publisher, stand_in):
    one = publisher.lora("p", seed=1)
    sampler = await spawn(mesh, publisher, stand_in)
    stand_in.bodies.clear()
    with pytest.raises(UnknownPolicyError, match="not loaded"):
        await sampler.sample(ask(one.handle, "x"))
    with pytest.raises(UnknownPolicyError):
        await sampler.refresh(["tinker://p/sampler_weights/000099"])
    await sampler.refresh([one.handle])
    await sampler.sample(ask(one.handle, "x", max_tokens=1))
    await sampler.refresh([])
    with pytest.raises(UnknownPolicyError):
        await sampler.sample(ask(one.handle, "x"))
    assert [body["model"] for body in stand_in.bodies] != []
    assert all(body["model"].startswith("p-000001-") for body in stand_in.bodies)


async def test_every_load_has_a_name_and_a_path_of_its_own(mesh, publisher, stand_in, tmp_path):
    one, two = publisher.lora("p", seed=1), publisher.lora("p", seed=2)
    sampler = await spawn(mesh, publisher, stand_in, folder=str(tmp_path / "shared"))
    for handles in ([one.handle], [two.handle], [one.handle]):  # the stand-in refuses what it saw before
        await sampler.refresh(handles)
        await sampler.sample(ask(handles[0], "x", max_tokens=1))
    assert len(stand_in.seen) == 3
    assert len({body["model"] for body in stand_in.bodies[2:]}) == 3
    await sampler.refresh([])
    await stand_in.until(lambda: not stand_in.adapters)
    await mesh.stop(sampler)
    assert not list((tmp_path / "shared" / "adapters").iterdir())


async def test_a_request_under_way_keeps_its_snapshot_through_a_refresh(mesh, publisher, stand_in):
    one, two = publisher.lora("p", seed=1), publisher.lora("p", seed=2)
    sampler = await spawn(mesh, publisher, stand_in)
    await sampler.refresh([one.handle])
    stand_in.held = asyncio.Event()
    stand_in.asked.clear()
    request = ask(one.handle, "x", max_tokens=3, default_stops=False)
    task = asyncio.create_task(sampler.sample(request))
    await stand_in.asked.wait()
    held, stand_in.held = stand_in.held, None
    await sampler.refresh([two.handle])
    await sampler.sample(ask(two.handle, "y", max_tokens=1))
    assert len(stand_in.adapters) == 2
    held.set()
    reply = await task
    assert reply.snapshot == one.handle
    assert reply.samples[0].logprobs == pytest.approx(one.logprobs(request.prompt, reply.samples[0].tokens), abs=1e-5)
    await stand_in.until(lambda: len(stand_in.adapters) == 1)


async def test_a_refresh_that_fails_leaves_what_was_served(mesh, publisher, stand_in):
    one, full = publisher.lora("p", seed=1, target_modules=["q_proj"]), publisher.full("f", seed=1)
    high, more = publisher.lora("h", seed=1, rank=32), publisher.lora("m", seed=1, target_modules=["q_proj", "v_proj"])
    sampler = await spawn(mesh, publisher, stand_in, target_modules=("q_proj", "k_proj"))
    await sampler.refresh([one.handle])
    for bad, said in ((full, "kind 'full'"), (high, "rank 32"), (more, "adapts v_proj")):
        with pytest.raises(PolicyError, match=said):
            await sampler.refresh([bad.handle])
    reply = await sampler.sample(ask(one.handle, "x", max_tokens=1))
    assert reply.snapshot == one.handle
    assert len(stand_in.adapters) == 1


async def test_what_a_server_cannot_do_is_refused_by_name(mesh, publisher, stand_in):
    one = publisher.lora("p", seed=1)
    sampler = await spawn(mesh, publisher, stand_in)
    await sampler.refresh([one.handle])
    for params, said in (
        ({"logprobs": 21}, "logprobs is 21; at most 20"),
        ({"temperature": 0.001}, "temperature is 0.001"),
        ({"presence_penalty": 3.0}, "presence_penalty is 3.0"),
        ({"logit_bias": ((1, 101.0),)}, "beyond -100 to 100"),
        ({"grammar": "x"}, "grammar"),
    ):
        with pytest.raises(InvalidRequestError, match=said):
            await sampler.sample(ask(one.handle, "x", **params))
    with pytest.raises(InvalidRequestError, match="out of vocabulary"):
        await sampler.sample(ask(one.handle, (99_999,)))
    done = [each async for each in sampler.stream.sample_together([ask(one.handle, "x"), ask(one.handle, (99_999,))])]
    results = dict(pair for pairs in done for pair in pairs)
    assert results[0].snapshot == one.handle
    assert isinstance(results[1], InvalidRequestError)


async def test_a_full_server_and_a_full_sampler_say_when_to_come_back(mesh, publisher, stand_in):
    one = publisher.lora("p", seed=1)
    sampler = await spawn(mesh, publisher, stand_in, max_waiting=2)
    await sampler.refresh([one.handle])
    with pytest.raises(Overloaded) as caught:
        await sampler.sample(ask(one.handle, "x", num_samples=3))
    assert caught.value.retry_after > 0
    response = error(429, "too many")
    response.headers["retry-after"] = "7"
    stand_in.refusal = lambda: response
    with pytest.raises(Overloaded) as caught:
        await sampler.sample(ask(one.handle, "x"))
    assert caught.value.retry_after == 7
    assert (await sampler.stats()).refused == 1


async def test_a_cancelled_ask_ends_its_connection(mesh, publisher, stand_in):
    one = publisher.lora("p", seed=1)
    sampler = await spawn(mesh, publisher, stand_in)
    await sampler.refresh([one.handle])
    stand_in.held = asyncio.Event()
    stand_in.asked.clear()
    task = asyncio.create_task(sampler.sample(ask(one.handle, "x")))
    await stand_in.asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    stand_in.held, first = None, stand_in.connection
    await sampler.sample(ask(one.handle, "y", max_tokens=1))
    assert first.is_closing()
    stats = await sampler.stats()
    assert (stats.cancelled, stats.running) == (1, 0)


async def test_a_server_with_log_probs_of_another_distribution_is_refused(mesh, publisher, base):
    async with serving(made := StandIn(base, processed=False)) as url:
        made.url = url
        with pytest.raises(ConfigError, match="processed_logprobs"):
            await spawn(mesh, publisher, made)


async def test_a_server_that_was_started_anew_gets_its_adapters_again(mesh, publisher, stand_in):
    one = publisher.lora("p", seed=1)
    sampler = await spawn(mesh, publisher, stand_in)
    await sampler.refresh([one.handle])
    stand_in.adapters.clear()
    request = ask(one.handle, "x", max_tokens=2, default_stops=False)
    reply = await sampler.sample(request)
    assert reply.samples[0].logprobs == pytest.approx(one.logprobs(request.prompt, reply.samples[0].tokens), abs=1e-5)
    assert len(stand_in.adapters) == 1


async def test_a_dead_engine_is_a_typed_error_once_it_died_too_often(mesh, publisher, stand_in):
    one = publisher.lora("p", seed=1)
    sampler = await spawn(mesh, publisher, stand_in, max_restarts=1)
    await sampler.refresh([one.handle])

    def die():
        stand_in.dead = True
        asyncio.get_running_loop().call_later(0.05, lambda: setattr(stand_in, "dead", False))
        return error(500, "EngineCore encountered an issue")

    stand_in.refusal = die
    with pytest.raises(EngineDiedError):
        await sampler.sample(ask(one.handle, "x"))
    with pytest.raises(EngineDiedError, match="more than 1 times"):
        await sampler.sample(ask(one.handle, "x"))


async def test_a_failed_request_to_a_living_engine_is_no_death(mesh, publisher, stand_in):
    one = publisher.lora("p", seed=1)
    sampler = await spawn(mesh, publisher, stand_in, max_restarts=0)
    await sampler.refresh([one.handle])
    stand_in.refusal = lambda: error(500, "this one failed")
    with pytest.raises(SamplingError, match="this one failed"):
        await sampler.sample(ask(one.handle, "x"))
    stand_in.refusal = None
    assert (await sampler.sample(ask(one.handle, "x"))).snapshot == one.handle


@pytest.fixture
def interpreter(tmp_path):
    """A stand-in for the interpreter of an environment with vLLM."""
    path = tmp_path / "python"
    program = Path(__file__).with_name("vllm_stand_in.py")
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {program} "$@"\n')
    path.chmod(0o755)
    return str(path)


def pids(log):
    return [int(found) for found in re.findall(r"^pid (\d+)$", log.read_text(), re.MULTILINE)]


async def test_a_started_server_that_is_killed_is_started_again_and_ends_with_the_sampler(
    publisher, interpreter, tmp_path
):
    one = publisher.lora("p", seed=1)
    settings = VllmSettings(python=interpreter, folder=str(tmp_path / "work"), start_timeout=60)
    log = tmp_path / "work" / "server.log"
    async with Mesh() as mesh:
        sampler = await mesh.spawn(
            VllmSampler, base_model=BASE, store=str(publisher.store.root), settings=settings, context_length=48
        )
        await sampler.refresh([one.handle])
        request = ask(one.handle, "x", max_tokens=3, temperature=0, default_stops=False)
        before = await sampler.sample(request)
        os.kill(pids(log)[0], signal.SIGKILL)
        after = await sampler.sample(request)
        assert before.samples[0].tokens == after.samples[0].tokens == request.prompt[-1:] * 3
        with pytest.raises(ContextOverflowError, match="holds 48"):
            await sampler.sample(ask(one.handle, (9,) * 49))
    first, second = pids(log)
    assert first != second
    assert "was killed by SIGKILL" in log.read_text()
    assert not list((tmp_path / "work" / "adapters").iterdir())
    assert not psutil.pid_exists(second)


async def test_a_server_that_cannot_start_says_what_it_wrote(publisher, tmp_path):
    path = tmp_path / "python"
    path.write_text("#!/bin/sh\necho no module named vllm\nexit 3\n")
    path.chmod(0o755)
    async with Mesh() as mesh:
        with pytest.raises(SamplingError, match=r"(?s)ended before it was ready.*no module named vllm"):
            await mesh.spawn(
                VllmSampler,
                base_model=BASE,
                store=str(publisher.store.root),
                settings=VllmSettings(python=str(path)),
            )
