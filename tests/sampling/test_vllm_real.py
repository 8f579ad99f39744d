"""Against a real vLLM: `-m vllm`, with TINKER_ACTORS_VLLM_PYTHON set; see the page on backends."""

import asyncio
import contextlib
import os

import psutil
import pytest
import pytest_asyncio
from sampling_harness import Publisher, ask

from tinker_actors.actors import Mesh
from tinker_actors.errors import UnknownPolicyError
from tinker_actors.models import load_tokenizer
from tinker_actors.sampling import Sampler, SamplingParams, SamplingRequest
from tinker_actors.sampling.backends import VllmSampler, VllmSettings

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.model,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="module"),
]

BASE = "smollm2-135m"
PROMPTS = [
    "The capital of France is",
    "def add(a, b):",
    "Once upon a time there was",
    "1 2 3 4 5",
    "Water boils at",
    "The opposite of hot is",
    "My favourite colour",
    "import os",
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory):
    """Both samplers over the same snapshots; one server for all tests."""
    python = os.environ.get("TINKER_ACTORS_VLLM_PYTHON")
    if not python:
        pytest.fail("TINKER_ACTORS_VLLM_PYTHON is not set; the interpreter of an environment with vLLM is needed")
    root = tmp_path_factory.mktemp("vllm")
    publisher = Publisher(root)
    one = publisher.lora("p", seed=1, rank=8, std=0.02, base=BASE, step=4)
    two = publisher.lora("q", seed=2, rank=16, std=0.02, base=BASE)
    settings = VllmSettings(python=python, folder=str(root / "work"), max_loras=4, start_timeout=400)
    async with Mesh() as mesh:
        place = {"base_model": BASE, "store": str(publisher.store.root), "context_length": 512}
        ours = await mesh.spawn(Sampler, **place)
        theirs = await mesh.spawn(VllmSampler, **place, settings=settings)
        for sampler in (ours, theirs):
            await sampler.refresh([one.handle, two.handle])
        yield ours, theirs, one, two


def encode(text):
    return load_tokenizer(BASE).encode(text)


def requests(one, two, **params):
    return [
        SamplingRequest(
            prompt=tuple(encode(text)),
            snapshot=(one, two)[(place + place // len(PROMPTS)) % 2].handle,
            params=SamplingParams(default_stops=False, **params),
        )
        for place, text in enumerate(PROMPTS * 2)
    ]


async def answers(sampler, asked):
    return await asyncio.gather(*(sampler.sample(request) for request in asked))


async def test_greedy_tokens_of_mixed_adapters_and_their_log_probs_are_ours(served):
    ours, theirs, one, two = served
    asked = requests(one, two, max_tokens=24, temperature=0)
    found, expected = await answers(theirs, asked), await answers(ours, asked)
    for reply, own in zip(found, expected, strict=True):
        assert reply.samples[0].tokens == own.samples[0].tokens
        assert reply.samples[0].logprobs == pytest.approx(own.samples[0].logprobs, abs=5e-5)
        assert (reply.snapshot, reply.snapshot_step) == (own.snapshot, own.snapshot_step)
        assert reply.samples[0].text == own.samples[0].text
    assert len({reply.samples[0].tokens for reply in found}) > len(PROMPTS)  # adapters differ


async def test_log_probs_are_of_the_distribution_that_was_drawn_from(served):
    ours, theirs, one, two = served
    asked = requests(one, two, max_tokens=12, temperature=0.7)
    found = await answers(theirs, asked)
    scored = [
        SamplingRequest(
            prompt=request.prompt,
            snapshot=request.snapshot,
            targets=reply.samples[0].tokens,
            params=SamplingParams(temperature=0.7),
        )
        for request, reply in zip(asked, found, strict=True)
    ]
    for reply, own in zip(found, await answers(ours, scored), strict=True):
        assert reply.samples[0].logprobs == pytest.approx(own.target_logprobs, abs=1e-4)


async def test_prompts_and_targets_score_as_ours_while_others_share_the_batch(served):
    ours, theirs, one, two = served
    asked = [
        SamplingRequest(
            prompt=request.prompt[:-1],
            targets=request.prompt[-1:],
            snapshot=request.snapshot,
            prompt_logprobs=True,
        )
        for request in requests(one, two)
    ]
    for reply, own in zip(await answers(theirs, asked), await answers(ours, asked), strict=True):
        assert reply.prompt_logprobs == pytest.approx(own.prompt_logprobs, abs=5e-5)
        assert reply.target_logprobs == pytest.approx(own.target_logprobs, abs=5e-5)


async def test_streams_groups_and_stops(served):
    _, theirs, one, _ = served
    prompt = tuple(encode("1 2 3"))
    params = SamplingParams(max_tokens=8, logprobs=3, default_stops=False)
    request = SamplingRequest(prompt=prompt, snapshot=one.handle, num_samples=3, params=params)
    *told, reply = [item async for item in theirs.stream.sample_tokens(request)]
    assert len(told) == sum(len(sample.tokens) for sample in reply.samples) == 24
    for index, sample in enumerate(reply.samples):
        assert tuple(token.token for token in told if token.index == index) == sample.tokens
        assert all(len(tops) == 3 for tops in sample.top_logprobs)
    stopping = SamplingRequest(
        prompt=tuple(encode("a b c d e f g h")),
        snapshot=one.handle,
        params=SamplingParams(max_tokens=32, temperature=0, stop=("e",), default_stops=False),
    )
    (ours,) = (await served[0].sample(stopping)).samples
    (sample,) = (await theirs.sample(stopping)).samples
    assert (sample.tokens, sample.end, sample.text) == (ours.tokens, ours.end, ours.text)


async def test_a_snapshot_that_left_is_refused_and_comes_back_under_another_name(served):
    ours, theirs, one, two = served
    asked = ask(one.handle, tuple(encode("The capital of France is")), max_tokens=4, temperature=0)
    await theirs.refresh([two.handle])
    with pytest.raises(UnknownPolicyError):
        await theirs.sample(asked)
    await theirs.refresh([one.handle, two.handle])
    assert (await theirs.sample(asked)).samples[0].tokens == (await ours.sample(asked)).samples[0].tokens


async def test_a_killed_engine_is_replaced_and_loses_no_request(served, tmp_path_factory):
    ours, theirs, one, two = served
    asked = requests(one, two, max_tokens=24, temperature=0)
    under_way = asyncio.gather(*(theirs.sample(request) for request in asked))
    await asyncio.sleep(0)
    for victim in engines():
        victim.kill()
    for reply, own in zip(await under_way, await answers(ours, asked), strict=True):
        assert reply.samples[0].tokens == own.samples[0].tokens
    assert (await theirs.stats()).failed == 0


def engines():
    """vLLM's engine processes below this one."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "EngineCore" in " ".join([process.name(), *process.cmdline()]):
                found.append(process)
    assert found
    return found
