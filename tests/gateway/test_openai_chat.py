"""Chat completions and responses of the gateway, with the real `openai` client over a real socket."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import openai
import pytest
import pytest_asyncio
from openai_served import HELLO, MODEL, served_at

from tinker_actors.data import Image, Message
from tinker_actors.gateway.openai import answering
from tinker_actors.models import Renderer, load_tokenizer
from tinker_actors.models.tokenizer import Tokenizer
from tinker_actors.sampling import SamplingParams, SamplingReply, SamplingRequest

TOKENIZER = load_tokenizer("tiny-llama")
pytestmark = pytest.mark.asyncio(loop_scope="module")

IDS = {"return_token_ids": True}
ARGUMENTS = {
    "type": "object",
    "properties": {"a": {"enum": [1, 2]}},
    "required": ["a"],
    "additionalProperties": False,
}


def schema(fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": fields}}


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": "Try.", "parameters": ARGUMENTS}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Any, openai.AsyncOpenAI]]:
    async with served_at(tmp_path_factory.mktemp("gateway")) as (gateway, api):
        yield gateway, api


async def by_the_sampler(gateway: Any, prompt: tuple[int, ...], **params: Any) -> SamplingReply:
    async with gateway.serving.loaded(MODEL) as snapshot:
        request = SamplingRequest(
            prompt=prompt, snapshot=snapshot, params=SamplingParams(**params), num_samples=params.pop("n", 1)
        )
        return await gateway.runtime.engines_of(MODEL).sampler.sample(request)


async def test_tokens_and_logprobs_are_the_samplers_for_the_same_seed(served):
    gateway, api = served
    said = await api.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        seed=5,
        max_tokens=12,
        logprobs=True,
        top_logprobs=3,
        temperature=0.8,
        extra_body=IDS,
    )
    renderer = Renderer(TOKENIZER)
    prompt = renderer.start([Message(role="user", content="hello")]).tokens
    reply = await by_the_sampler(
        gateway, prompt, seed=5, max_tokens=12, temperature=0.8, logprobs=3, stop=renderer.stop_ids
    )
    (sample,) = reply.samples
    (choice,) = said.choices
    assert tuple(said.prompt_token_ids) == prompt
    assert tuple(choice.token_ids) == sample.tokens
    assert choice.message.content == sample.text
    assert tuple(entry.logprob for entry in choice.logprobs.content) == sample.logprobs
    tops = [tuple(top.logprob for top in entry.top_logprobs) for entry in choice.logprobs.content]
    assert tops == [tuple(value for _, value in top) for top in sample.top_logprobs]
    assert (said.usage.prompt_tokens, said.usage.completion_tokens) == (len(prompt), len(sample.tokens))


@pytest.mark.parametrize("n", [1, 3])
async def test_a_stream_says_the_same_token_by_token(served, n):
    _, api = served
    fields = {"model": MODEL, "messages": HELLO, "seed": 9, "max_tokens": 20, "n": n, "logprobs": True}
    whole = await api.chat.completions.create(**fields, top_logprobs=2, extra_body=IDS)
    stream = await api.chat.completions.create(
        **fields, top_logprobs=2, extra_body=IDS, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[-1].usage == whole.usage
    assert chunks[-1].choices == []
    assert tuple(chunks[0].prompt_token_ids) == tuple(whole.prompt_token_ids)
    for choice in whole.choices:
        mine = [part for chunk in chunks for part in chunk.choices if part.index == choice.index]
        assert "".join(part.delta.content or "" for part in mine) == choice.message.content
        assert [token for part in mine for token in getattr(part, "token_ids", ())] == choice.token_ids
        shown = [entry for part in mine if part.logprobs for entry in part.logprobs.content]
        assert shown == choice.logprobs.content
        assert [part.finish_reason for part in mine if part.finish_reason] == [choice.finish_reason]
        assert len([part for part in mine if part.delta.content]) > 1


async def test_a_stop_string_ends_the_text_and_no_part_of_it_is_ever_shown(served):
    _, api = served
    fields = {"model": MODEL, "messages": HELLO, "seed": 1, "max_tokens": 40}
    free = (await api.chat.completions.create(**fields)).choices[0].message.content
    stop = free[6:9]
    cut = await api.chat.completions.create(**fields, stop=[stop])
    stream = await api.chat.completions.create(**fields, stop=stop, stream=True)
    told = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert cut.choices[0].message.content == free[: free.index(stop)] == "".join(told)
    assert cut.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("names", [["add"], ["add", "sub"]])
async def test_a_required_call_is_made_and_a_named_one_is_the_named(served, names):
    _, api = served
    tools = [tool("add"), tool("sub")]
    fields = {"model": MODEL, "messages": HELLO, "tools": tools, "max_tokens": 400, "parallel_tool_calls": False}
    choice = "required" if len(names) == 2 else {"type": "function", "function": {"name": "add"}}
    said = await api.chat.completions.create(**fields, tool_choice=choice, seed=2)
    (call,) = said.choices[0].message.tool_calls
    assert said.choices[0].finish_reason == "tool_calls"
    assert call.function.name in names
    assert json.loads(call.function.arguments)["a"] in (1, 2)
    async with api.chat.completions.stream(**fields, tool_choice=choice, seed=2) as events:
        final = (await events.get_final_completion()).choices[0].message
    assert not final.content  # nothing of the call's markup is told as text
    told = final.tool_calls[0].function
    assert (told.name, told.arguments) == (call.function.name, call.function.arguments)


async def test_json_that_fits_a_schema_is_what_is_said(served):
    _, api = served
    said = await api.chat.completions.create(model=MODEL, messages=HELLO, response_format=schema(ARGUMENTS))
    assert json.loads(said.choices[0].message.content)["a"] in (1, 2)
    answer = await api.responses.create(
        model=MODEL, input="hello", text={"format": {"type": "json_schema", "name": "it", "schema": ARGUMENTS}}
    )
    assert json.loads(answer.output_text)["a"] in (1, 2)
    any_json = await api.chat.completions.create(
        model=MODEL, messages=HELLO, response_format={"type": "json_object"}, max_tokens=30
    )
    assert any_json.choices[0].message.content.startswith("{")


async def test_a_response_goes_on_from_an_earlier_one_of_the_same_tenant_alone(served):
    gateway, api = served
    fields = {"model": MODEL, "max_output_tokens": 5, "temperature": 0}
    first = await api.responses.create(input="hello", instructions="be brief", **fields)
    assert first.status == "incomplete"
    before = len("be brief") + len("hello") + len(first.output_text)
    second = await api.responses.create(input="on", previous_response_id=first.id, **fields)
    assert second.usage.input_tokens == before + len("on") + 9  # what the template writes around four messages
    told = [event async for event in await api.responses.create(input="hello", stream=True, **fields)]
    texts = [event.delta for event in told if event.type == "response.output_text.delta"]
    assert told[0].type == "response.created"
    assert len(texts) > 1
    assert "".join(texts) == told[-1].response.output_text
    assert told[-1].type == "response.incomplete"
    remembered = gateway.speakers.remembered
    remembered.keep("other", "abc", (Message(role="user", content="secret"),))
    for id in ("resp_abc", "resp_none"):
        with pytest.raises(openai.NotFoundError) as unknown:
            await api.responses.create(model=MODEL, input="on", previous_response_id=id)
        assert unknown.value.param == "previous_response_id"
    kept = await api.responses.create(model=MODEL, input="hello", max_output_tokens=2, store=False)
    with pytest.raises(openai.NotFoundError):
        await api.responses.create(model=MODEL, input="on", previous_response_id=kept.id)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"model": "none/such"}, "model"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"temperature": 3}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"logit_bias": {"five": 1}}, "logit_bias"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": [tool("a b")]}, "tools[0].function.name"),
        ({"tools": [tool("add")], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}}},
            "response_format",
        ),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": "x" * 3000}]}, "messages"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]}
                ]
            },
            "messages[0].content",
        ),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"seed": "x"}, "seed"),
    ],
)
async def test_what_can_not_be_served_is_refused_by_name(served, fields, param):
    _, api = served
    body = {"model": MODEL, "messages": HELLO, **fields}
    for stream in (False, True):
        with pytest.raises(openai.APIStatusError) as refused:
            await api.post("/chat/completions", body={**body, "stream": stream}, cast_to=object)
        assert refused.value.status_code in (400, 404)
        assert refused.value.param == param
        assert refused.value.type == "invalid_request_error"


async def test_penalties_and_biases_change_what_is_sampled(served):
    _, api = served
    said = await api.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=6, logit_bias={str(TOKENIZER.encode("q")[0]): 100}, temperature=0
    )
    assert said.choices[0].message.content == "qqqqqq"
    once = await api.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        max_tokens=8,
        temperature=0,
        logit_bias={str(TOKENIZER.encode(letter)[0]): 50 + ord(letter) / 100 for letter in "abcdefgh"},
        presence_penalty=2,
        frequency_penalty=2,
    )
    assert sorted(once.choices[0].message.content) == list("abcdefgh")


async def test_a_context_that_is_full_is_named(served):
    _, api = served
    with pytest.raises(openai.BadRequestError) as full:
        await api.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x" * 3000}])
    assert full.value.code == "context_length_exceeded"


async def test_what_takes_its_time_to_read_does_not_hold_up_the_loop(served, monkeypatch):
    _, api = served
    worked: list[int] = []

    def noted(kind: type, name: str, is_long: Callable[..., bool]) -> None:
        work = getattr(kind, name)

        def working(*args: Any, **named: Any) -> Any:
            if is_long(*args):
                worked.append(threading.get_ident())
            return work(*args, **named)

        monkeypatch.setattr(kind, name, working)

    noted(Tokenizer, "encode", lambda _, text: len(text) > 2**14)
    noted(Image, "of", lambda encoded: len(encoded) > 2**13)
    noise = Image.of(np.random.default_rng(0).integers(0, 256, (96, 96, 3), dtype=np.uint8)).data
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(noise).decode()}"}}
    long = "x" * 2**15
    for refused in (
        api.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": long}]),
        api.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": [picture]}]),
        api.completions.create(model=MODEL, prompt=long),
    ):
        with pytest.raises(openai.BadRequestError):
            await refused
    assert len(worked) == 3
    assert threading.get_ident() not in worked


async def test_a_prompt_that_is_far_too_long_never_goes_to_the_sampler(served, monkeypatch):
    _, api = served
    monkeypatch.setattr(answering, "sampled", None)
    for refused in (
        api.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x" * 3000}]),
        api.completions.create(model=MODEL, prompt="x" * 3000),
        api.completions.create(model=MODEL, prompt=[5] * 3000),
    ):
        with pytest.raises(openai.BadRequestError, match="the context holds 2048") as full:
            await refused
        assert full.value.code == "context_length_exceeded"


async def test_without_the_package_of_grammars_a_format_is_refused(served, monkeypatch):
    from tinker_actors.sampling import grammars
    from tinker_actors.sampling.requests import InvalidRequestError

    def missing() -> Any:
        raise InvalidRequestError("a grammar needs the package llguidance: install tinker-actors[grammar]")

    _, api = served
    monkeypatch.setattr(grammars, "_package", missing)
    with pytest.raises(openai.BadRequestError, match="install tinker-actors") as refused:
        await api.chat.completions.create(model=MODEL, messages=HELLO, response_format={"type": "json_object"})
    assert refused.value.param == "response_format"
