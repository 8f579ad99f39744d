"""What the OpenAI-compatible API serves to whom, texts without a template, and clients that go away."""

from __future__ import annotations

import asyncio
import base64
import io
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai_served import HELLO, MODEL, TINY, served_at
from PIL import Image
from tests.sampling.held_steps import hold_steps, when_cancelled

from tinker_actors import data
from tinker_actors.errors import ActorError
from tinker_actors.gateway.caller import Caller
from tinker_actors.gateway.openai import answering
from tinker_actors.gateway.openai.names import listed, target_of
from tinker_actors.gateway.record_kinds import CheckpointRecord, ModelRecord
from tinker_actors.gateway.runtime import ServedModel
from tinker_actors.models import load_tokenizer
from tinker_actors.policies import PolicySpec

TOKENIZER = load_tokenizer("tiny-llama")
pytestmark = pytest.mark.asyncio(loop_scope="module")

IDS = {"return_token_ids": True}
MINE, OTHER = (
    Caller(tenant="local", key="a", scopes=frozenset({"sample"})),
    Caller(tenant="other", key="b", scopes=frozenset({"sample"})),
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Any, openai.AsyncOpenAI]]:
    async with served_at(tmp_path_factory.mktemp("gateway")) as (gateway, api):
        yield gateway, api


async def store(gateway: Any, name: str, tenant: str, *, public: bool = False, expires_at: float | None = None) -> str:
    """A policy with one snapshot, and its records; the snapshot's path."""
    trainer = gateway.runtime.engines_of(MODEL).trainer
    policy = await trainer.create(PolicySpec(base_model=TINY.base_model, rank=2, name=name))
    handle = (await trainer.publish(policy)).handle
    common = {"tenant": tenant, "base_model": MODEL, "rank": 2, "created_at": 5.0}
    gateway.records.models.put(ModelRecord(model_id=name, session_id="s", optimizer="adamw", used_at=5.0, **common))
    gateway.records.checkpoints.put(
        CheckpointRecord(
            path=handle, model_id=name, kind="sampler", handle=handle, public=public, expires_at=expires_at, **common
        )
    )
    return handle


async def test_a_tenant_sees_base_models_its_policies_and_snapshots_and_public_ones(served):
    gateway, api = served
    mine = await store(gateway, "mine", "local")
    hidden = await store(gateway, "hidden", "other")
    public = await store(gateway, "shown", "other", public=True)
    gone = await store(gateway, "gone", "local", expires_at=time.time() - 1)
    names = [entry["id"] for entry in await listed(gateway, MINE)]
    assert set(names) >= {MODEL, "mine", mine, public}
    assert not {hidden, "hidden", "shown", gone} & set(names)
    entries = {entry["id"]: entry for entry in await listed(gateway, MINE)}
    assert (entries[public]["owned_by"], entries[mine]["owned_by"]) == ("public", "local")
    for name in ("hidden", hidden, gone, "tinker://mine/sampler_weights/none", "tinker://mine/weights/x", "nobody"):
        with pytest.raises(Exception, match="not known here") as unknown:
            await target_of(gateway, MINE, name)
        assert unknown.value.status == 404
    for name in (mine, "mine"):
        with pytest.raises(Exception, match="not known here"):
            await target_of(gateway, OTHER, name)
    assert (await api.models.retrieve("mine")).id == "mine"
    assert (await api.models.retrieve(public)).id == public


async def test_the_list_of_models_asks_the_records_as_often_however_many_snapshots_there_are(served):
    gateway, _ = served
    queries: list[str] = []
    handle = await store(gateway, "often", "local")
    gateway.records._connection.set_trace_callback(queries.append)
    try:
        await listed(gateway, MINE)
        few = len(queries)
        record = gateway.records.checkpoints.get(handle)
        for number in range(20):
            gateway.records.checkpoints.put(replace(record, path=f"{handle}-{number}"))
        queries.clear()
        assert f"{handle}-19" in [entry["id"] for entry in await listed(gateway, MINE)]
        assert len(queries) == few
    finally:
        gateway.records._connection.set_trace_callback(None)
        for number in range(20):
            gateway.records.checkpoints.delete(f"{handle}-{number}")


async def test_a_policy_is_its_latest_snapshot(served):
    gateway, api = served
    first = await store(gateway, "grows", "local")
    trainer = gateway.runtime.engines_of(MODEL).trainer
    assert (await target_of(gateway, MINE, "grows")).handle == first
    second = (await trainer.publish("grows")).handle
    assert (await target_of(gateway, MINE, "grows")).handle == second
    by_name, by_handle, by_base = [
        (await api.chat.completions.create(model=name, messages=HELLO, seed=4, max_tokens=8, extra_body=IDS))
        .choices[0]
        .token_ids
        for name in ("grows", first, MODEL)
    ]
    assert by_name == by_handle == by_base  # nothing was trained


async def test_completions_go_on_from_texts_and_tokens(served):
    _, api = served
    fields = {"model": MODEL, "max_tokens": 5, "seed": 3, "extra_body": IDS}
    both = await api.completions.create(prompt=["one", "two"], n=2, **fields)
    assert [choice.index for choice in both.choices] == [0, 1, 2, 3]
    ids = TOKENIZER.encode("two")
    assert both.choices[2].prompt_token_ids == ids
    tokens = await api.completions.create(prompt=ids, n=2, echo=True, logprobs=2, **fields)
    assert [choice.token_ids for choice in tokens.choices] == [choice.token_ids for choice in both.choices[2:]]
    first = tokens.choices[0]
    assert first.text == "two" + both.choices[2].text
    assert first.logprobs.tokens[:3] == list("two")
    assert first.logprobs.token_logprobs[0] is None
    assert len(first.logprobs.token_logprobs) == 3 + len(first.token_ids)
    assert len(first.logprobs.top_logprobs[-1]) >= 2
    assert first.logprobs.text_offset[:4] == [0, 1, 2, 3]
    stream = await api.completions.create(prompt=["one", "two"], n=2, stream=True, **fields)
    told: dict[int, str] = {}
    async for chunk in stream:
        for part in chunk.choices:
            told[part.index] = told.get(part.index, "") + part.text
    assert told == {choice.index: choice.text for choice in both.choices}


async def test_a_prompt_is_scored_without_sampling(served):
    _, api = served
    scored = await api.completions.create(model=MODEL, prompt="score me", max_tokens=0, echo=True, logprobs=0)
    asked = await api.completions.create(
        model=MODEL, prompt="score me", max_tokens=1, extra_body={"prompt_logprobs": 3}
    )
    assert scored.usage.completion_tokens == 0
    assert scored.choices[0].text == "score me"
    ids = TOKENIZER.encode("score me")
    values = [
        entry[str(token)]["logprob"] for token, entry in zip(ids[1:], asked.choices[0].prompt_logprobs[1:], strict=True)
    ]
    assert scored.choices[0].logprobs.token_logprobs[1:] == values
    for entry in asked.choices[0].prompt_logprobs[1:]:
        ranked = sorted((shown for shown in entry.values() if shown["rank"]), key=lambda shown: shown["rank"])
        assert [shown["rank"] for shown in ranked] == [1, 2, 3]
        assert [shown["logprob"] for shown in ranked] == sorted((s["logprob"] for s in ranked), reverse=True)
        assert len(entry) in (3, 4)  # the token itself stands with them
    with pytest.raises(openai.BadRequestError) as refused:
        await api.completions.create(model=MODEL, prompt="score me", max_tokens=0)
    assert refused.value.param == "max_tokens"


async def test_a_client_that_leaves_amid_its_stream_ends_the_sampling(served, monkeypatch):
    gateway, api = served
    sampler = gateway.runtime.engines_of(MODEL).sampler
    before = (await sampler.stats()).cancelled
    hold_steps(monkeypatch, {100: when_cancelled(monkeypatch)})  # of the thousands that the answer has
    stream = await api.chat.completions.create(
        model=MODEL, messages=HELLO, stream=True, seed=1, extra_body={"ignore_eos": True}
    )
    async for chunk in stream:
        if chunk.choices[0].delta.content:
            break
    await stream.close()
    async with asyncio.timeout(50):
        while (stats := await sampler.stats()).cancelled == before or stats.running:
            pass


async def test_images_are_read_where_the_model_sees_and_refused_where_not(tmp_path, served):
    picture = io.BytesIO()
    Image.new("RGB", (32, 32), "red").save(picture, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(picture.getvalue()).decode()}"
    parts = [{"type": "text", "text": "what?"}, {"type": "image_url", "image_url": {"url": url}}]
    messages = [{"role": "user", "content": parts}]
    _, blind = served
    with pytest.raises(openai.BadRequestError, match="reads none") as refused:
        await blind.chat.completions.create(model=MODEL, messages=messages)
    assert refused.value.param == "messages"
    seeing = ServedModel(name=MODEL, base_model="tiny-qwen2-vl", sampler={"kv_memory": 2**24})
    async with served_at(tmp_path, seeing) as (_, api):
        said = await api.chat.completions.create(model=MODEL, messages=messages, max_tokens=3, extra_body=IDS)
        chunk = load_tokenizer("tiny-qwen2-vl").images.chunk(data.Image.of(picture.getvalue()))
        assert said.prompt_token_ids.count(chunk.placeholder) == len(chunk)
        answer = await api.responses.create(
            model=MODEL,
            input=[{"role": "user", "content": [{"type": "input_image", "image_url": url}]}],
            max_output_tokens=2,
        )
        assert answer.usage.input_tokens > len(chunk)


async def test_what_a_tenant_samples_stands_in_its_books(served):
    gateway, api = served
    before = usage(gateway)
    said = await api.completions.create(model=MODEL, prompt="count me", max_tokens=3, n=2)
    after = usage(gateway)
    assert after["sampled"] - before["sampled"] == said.usage.completion_tokens
    assert after["prompt"] + after["cached"] - before["prompt"] - before["cached"] == len("count me")
    assert gateway.crowding.under_way(MODEL) == 0


def usage(gateway: Any) -> Counter[str]:
    counts: Counter[str] = Counter()
    for row in gateway.records.usage.where("tenant = ?", "local"):
        counts[row.kind] += row.count
    return counts


async def test_a_sampler_that_was_started_again_serves_as_before(served):
    gateway, api = served
    fields = {"model": MODEL, "messages": HELLO, "max_tokens": 6, "seed": 8, "extra_body": IDS}
    before = (await api.chat.completions.create(**fields)).choices[0].token_ids
    await gateway.runtime.engines_of(MODEL).sampler.refresh([])  # it holds nothing then
    assert (await api.chat.completions.create(**fields)).choices[0].token_ids == before
    await gateway.runtime.engines_of(MODEL).sampler.refresh([])
    stream = await api.chat.completions.create(**fields, stream=True)
    told = [token async for chunk in stream for token in getattr(chunk.choices[0], "token_ids", ())]
    assert told == before


async def test_a_sampler_that_is_lost_amid_a_request_is_an_error_that_clients_ask_again_after(served, monkeypatch):
    _, api = served

    async def lost(*_: Any) -> None:
        raise ActorError("node 1 died with secrets in its path")

    monkeypatch.setattr(answering, "sampled", lost)
    for stream in (False, True):
        with pytest.raises(openai.InternalServerError) as refused:
            await api.chat.completions.create(model=MODEL, messages=HELLO, stream=stream)
        assert refused.value.status_code == 503
        assert "secrets" not in str(refused.value)
        assert refused.value.response.headers["retry-after"] == "5"


async def test_what_is_full_says_when_to_ask_again(tmp_path):
    async with served_at(tmp_path, replace(TINY, sampler={**TINY.sampler, "max_waiting": 1, "max_batch": 1})) as (
        _,
        api,
    ):
        with pytest.raises(openai.RateLimitError) as full:
            await api.completions.create(model=MODEL, prompt="x", n=8, max_tokens=4)
        assert full.value.response.headers["retry-after"].isdecimal()
        assert full.value.code == "overloaded"
