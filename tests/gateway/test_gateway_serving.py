"""Which snapshots the gateway's samplers hold, over real engines in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tinker_actors.errors import PolicyError, UnknownPolicyError
from tinker_actors.gateway.refusals import RefusalError
from tinker_actors.gateway.runtime import Runtime, ServedModel
from tinker_actors.gateway.serving import Serving
from tinker_actors.models import load_base
from tinker_actors.policies import PolicySpec, SnapshotStore
from tinker_actors.sampling import SamplingParams, SamplingRequest

MODEL = "tiny-llama"


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Runtime]:
    async with Runtime(tmp_path, [ServedModel(name=MODEL)], in_process=True) as runtime:
        yield runtime


async def publish(runtime: Runtime, name: str, count: int = 1) -> list[str]:
    trainer = runtime.engines_of(MODEL).trainer
    policy = await trainer.create(PolicySpec(base_model=MODEL, rank=2, name=name))
    return [(await trainer.publish(policy)).handle for _ in range(count)]


async def served(runtime: Runtime) -> set[str]:
    return set((await runtime.engines_of(MODEL).sampler.stats()).snapshots)


async def test_snapshots_load_when_they_are_needed_and_several_at_once(runtime: Runtime):
    serving = Serving(runtime)
    handles = await publish(runtime, "p", 4)

    async def use(handle: str) -> None:
        async with serving.loaded(MODEL, handle) as snapshot:
            assert snapshot == handle
            assert handle in await served(runtime)

    await asyncio.gather(*(use(handle) for handle in handles * 3))
    assert await served(runtime) == set(handles)
    with pytest.raises(RefusalError, match="not served"):
        async with serving.loaded("other"):
            pass


async def test_the_base_model_is_served_as_it_is(runtime: Runtime):
    import torch

    request = {"prompt": (5, 6, 7), "params": SamplingParams(max_tokens=4, temperature=0, default_stops=False)}
    async with Serving(runtime).loaded(MODEL) as snapshot:
        reply = await runtime.engines_of(MODEL).sampler.sample(SamplingRequest(snapshot=snapshot, **request))
    tokens = [5, 6, 7, *reply.samples[0].tokens]
    with torch.inference_mode():
        logprobs = load_base(MODEL, "float32").model(torch.tensor([tokens])).logits[0].log_softmax(-1)
    for position, (token, logprob) in enumerate(
        zip(reply.samples[0].tokens, reply.samples[0].logprobs, strict=True), start=2
    ):
        assert token == int(logprobs[position].argmax())
        assert logprob == pytest.approx(float(logprobs[position, token]), abs=1e-5)


async def test_a_gateway_that_was_started_again_finds_the_base_model_it_stored(runtime: Runtime):
    async with Serving(runtime).loaded(MODEL) as first:
        pass
    async with Serving(runtime).loaded(MODEL) as second:
        assert first == second


async def test_the_least_recently_used_goes_and_what_is_in_use_stays(runtime: Runtime):
    serving = Serving(runtime, most=2)
    a, b, c, d = await publish(runtime, "p", 4)
    async with serving.loaded(MODEL, a):
        for handle in (b, c):
            async with serving.loaded(MODEL, handle):
                pass
        assert await served(runtime) == {a, c}
        async with serving.loaded(MODEL, b), serving.loaded(MODEL, c), serving.loaded(MODEL, d):
            assert await served(runtime) == {a, b, c, d}
    async with serving.loaded(MODEL, a):
        pass
    assert serving.held(MODEL)[-1] == a


async def test_a_snapshot_that_is_gone_is_named_and_fails_nobody_else(runtime: Runtime):
    serving = Serving(runtime)
    good, gone = await publish(runtime, "p", 2)
    SnapshotStore(runtime.store).delete(gone)

    async def use(handle: str) -> str:
        async with serving.loaded(MODEL, handle) as snapshot:
            return snapshot

    answers = await asyncio.gather(*map(use, (good, gone, "tinker://nobody/sampler_weights/1")), return_exceptions=True)
    assert answers[0] == good
    for answer, handle in zip(answers[1:], (gone, "tinker://nobody/sampler_weights/1"), strict=True):
        assert isinstance(answer, UnknownPolicyError)
        assert handle in str(answer)
    with pytest.raises(PolicyError, match="no handle"):
        await use("nonsense")


async def test_a_snapshot_that_was_deleted_serves_those_who_use_it_and_nobody_new(runtime: Runtime):
    serving = Serving(runtime)
    (handle,) = await publish(runtime, "p")
    sampler = runtime.engines_of(MODEL).sampler
    async with serving.loaded(MODEL, handle) as snapshot:
        SnapshotStore(runtime.store).delete(handle)
        await serving.forget(MODEL, handle)
        await sampler.sample(SamplingRequest(prompt=(1, 2), snapshot=snapshot, params=SamplingParams(max_tokens=1)))
        with pytest.raises(UnknownPolicyError, match=handle):
            async with serving.loaded(MODEL, handle):
                pass
    with pytest.raises(UnknownPolicyError, match=handle):
        async with serving.loaded(MODEL, handle):
            pass
    assert handle not in await served(runtime)


async def test_an_asker_that_goes_while_its_snapshot_loads_leaves_no_use_behind(runtime: Runtime):
    serving = Serving(runtime, most=1)
    a, b = await publish(runtime, "p", 2)

    async def use(handle: str) -> None:
        async with serving.loaded(MODEL, handle):
            pass

    impatient = asyncio.create_task(use(a))
    await asyncio.sleep(0)
    impatient.cancel()
    await asyncio.wait([impatient])
    await use(b)
    assert await served(runtime) == {b}


async def test_what_a_sampler_lost_with_its_process_is_loaded_again_for_the_next_asker(runtime: Runtime):
    serving = Serving(runtime)
    one, other = await publish(runtime, "p", 2)
    sampler = runtime.engines_of(MODEL).sampler
    for handle in (one, other):
        async with serving.loaded(MODEL, handle):
            pass
    await sampler.refresh([])  # as one that was started again has it
    request = SamplingRequest(prompt=(5,), snapshot=one, params=SamplingParams(max_tokens=1))
    with pytest.raises(UnknownPolicyError):
        async with serving.loaded(MODEL, one):
            await sampler.sample(request)
    for handle in (one, other):  # both were lost
        async with serving.loaded(MODEL, handle):
            assert handle in await served(runtime)
