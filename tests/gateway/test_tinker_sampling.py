"""The Tinker API's sampling, at the wire."""

from __future__ import annotations

import asyncio
import base64
import math
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.gateway.gateways import TINY
from tests.gateway.tinker_wire import PROMPT, Wire, published, wired
from tests.sampling.held_steps import hold_steps, when_cancelled
from tinker.proto import tinker_public_pb2 as wire

from tinker_actors.data import Image
from tinker_actors.gateway.crowding import Crowding
from tinker_actors.gateway.record_kinds import ModelRecord
from tinker_actors.gateway.runtime import ServedModel
from tinker_actors.models import load_tokenizer
from tinker_actors.policies import SnapshotStore
from tinker_actors.sampling import SamplingParams, SamplingReply, SamplingRequest


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Wire]:
    async with wired(tmp_path) as client:
        yield client


async def directly(client: Wire, **fields: Any) -> SamplingReply:
    """What the sampler says without HTTP."""
    async with client.gateway.serving.loaded(TINY.name) as snapshot:
        request = SamplingRequest(prompt=PROMPT, snapshot=snapshot, **fields)
        return await client.gateway.runtime.engines_of(TINY.name).sampler.sample(request)


def floats(data: bytes) -> list[float]:
    return np.frombuffer(data, np.float32).tolist()


def ints(data: bytes) -> list[int]:
    return np.frombuffer(data, np.int32).tolist()


async def test_samples_are_those_of_the_sampler_itself(client: Wire):
    sampler = await client.sampler(base_model=TINY.name)
    params = {"max_tokens": 6, "seed": 3, "temperature": 0.8, "top_k": 20, "top_p": 0.9, "stop": []}
    response = await client.sample(sampler, num_samples=3, sampling_params=params)
    expected = await directly(
        client,
        num_samples=3,
        params=SamplingParams(max_tokens=6, seed=3, temperature=0.8, top_k=20, top_p=0.9, default_stops=False),
    )
    assert [ints(sequence.tokens) for sequence in response.sequences] == [list(s.tokens) for s in expected.samples]
    for sequence, sample in zip(response.sequences, expected.samples, strict=True):
        assert floats(sequence.logprobs) == [float(np.float32(logprob)) for logprob in sample.logprobs]
        assert sequence.stop_reason == wire.STOP_REASON_LENGTH


async def test_a_promise_names_each_sample_and_repeats_for_the_same_sequence_number(client: Wire):
    sampler = await client.sampler(base_model=TINY.name)
    first = (await client.ask(sampler, num_samples=2, sampling_params={"max_tokens": 1})).json()
    assert len(set(first["sample_sequence_ids"])) == 2
    again = (await client.ask(sampler, num_samples=2, sampling_params={"max_tokens": 1})).json()
    other = (await client.ask(sampler, seq_id=1, num_samples=2, sampling_params={"max_tokens": 1})).json()
    assert first == again
    assert first["request_id"] != other["request_id"]
    one, two = await client.fetch(first["request_id"]), await client.fetch(first["request_id"])
    assert one == two


async def test_stops_are_strings_or_ids_and_an_empty_list_lets_nothing_end_a_sample(client: Wire):
    sampler = await client.sampler(base_model=TINY.name)
    free = await client.sample(sampler, sampling_params={"max_tokens": 12, "temperature": 0, "stop": []})
    tokens = ints(free.sequences[0].tokens)
    assert len(tokens) == 12
    stopped = await client.sample(
        sampler, seq_id=1, sampling_params={"max_tokens": 12, "temperature": 0, "stop": [tokens[3]]}
    )
    end = tokens.index(tokens[3]) + 1
    assert ints(stopped.sequences[0].tokens) == tokens[:end]
    assert stopped.sequences[0].stop_reason == wire.STOP_REASON_STOP
    sample = (await directly(client, params=SamplingParams(max_tokens=12, temperature=0, default_stops=False))).samples[
        0
    ]
    for seq_id, stop in ((2, sample.text[-2:]), (3, [sample.text[-2:]])):
        cut = await client.sample(
            sampler, seq_id=seq_id, sampling_params={"max_tokens": 12, "temperature": 0, "stop": stop}
        )
        assert cut.sequences[0].stop_reason == wire.STOP_REASON_STOP
        assert len(ints(cut.sequences[0].tokens)) <= 12


async def test_log_probs_of_the_prompt_stand_at_their_tokens(client: Wire):
    sampler = await client.sampler(base_model=TINY.name)
    expected = await directly(client, prompt_logprobs=True, params=SamplingParams(max_tokens=1))
    asked = {"prompt_logprobs": True, "topk_prompt_logprobs": 3, "sampling_params": {"max_tokens": 1}}
    whole = await client.sample(sampler, **asked)
    logprobs = floats(whole.prompt_logprobs)
    assert math.isnan(logprobs[0])
    assert logprobs[1:] == pytest.approx(expected.prompt_logprobs, abs=1e-6)
    assert (whole.topk_prompt_logprobs.length, whole.topk_prompt_logprobs.k) == (len(PROMPT), 3)
    assert ints(whole.topk_prompt_logprobs.token_ids)[:3] == [0, 0, 0]
    assert floats(whole.topk_prompt_logprobs.logprobs)[:3] == [-99999.0] * 3
    tail = await client.sample(sampler, seq_id=1, prompt_logprobs_last_n=1, **asked)
    assert [math.isnan(value) for value in floats(tail.prompt_logprobs)] == [True, True, True, False]
    assert floats(tail.topk_prompt_logprobs.logprobs)[-3:] == floats(whole.topk_prompt_logprobs.logprobs)[-3:]


async def test_chosen_ids_are_scored_in_the_layout_they_were_asked_in(client: Wire):
    sampler = await client.sampler(base_model=TINY.name)
    dense = {"data": [-1, -1, 9, PROMPT[2], -1, 11], "dtype": "int64", "shape": [3, 2]}
    rows = {"data": [9, PROMPT[2], 11], "shape": [3, 2], "sparse_crow_indices": [0, 0, 2, 3]}
    sparse = rows | {"dtype": "int64", "sparse_col_indices": [0, 1, 1]}
    common = {"prompt_logprobs": True, "sampling_params": {"max_tokens": 1}}
    one = await client.sample(sampler, target_prompt_logprobs=dense, **common)
    two = await client.sample(sampler, seq_id=1, target_prompt_logprobs=sparse, **common)
    values = floats(one.target_prompt_logprobs.dense)
    assert (values[0], values[1], values[4]) == (0.0, 0.0, 0.0)
    assert values[3] == pytest.approx(floats(one.prompt_logprobs)[2], abs=1e-5)
    assert floats(two.target_prompt_logprobs.sparse_csr.values) == [values[2], values[3], values[5]]
    assert list(two.target_prompt_logprobs.shape) == [3, 2]


async def test_drawn_alternatives_and_most_likely_sampled_tokens_come_with_a_sample(client: Wire):
    sampler = await client.sampler(base_model=TINY.name)
    params = {"max_tokens": 2, "seed": 1, "temperature": 0, "stop": []}
    response = await client.sample(sampler, prompt_alt_tokens_k=4, topk_sample_logprobs=2, sampling_params=params)
    drawn = response.prompt_alt_tokens
    assert list(drawn.tokens.shape) == list(drawn.logprobs.shape) == [3, 4]
    assert len(np.frombuffer(drawn.tokens.dense, np.int64)) == 12
    sequence = response.sequences[0]
    tops = sequence.topk_sampled_logprobs
    assert (tops.length, tops.k) == (2, 2)
    assert ints(tops.token_ids)[::2] == ints(sequence.tokens)


async def test_without_a_limit_a_sample_goes_on_to_the_contexts_end(client: Wire):
    sampler = await client.sampler(base_model=TINY.name)
    response = await client.sample(sampler, tokens=(5,) * 500, sampling_params={"stop": []})
    assert len(ints(response.sequences[0].tokens)) == 12
    assert response.sequences[0].stop_reason == wire.STOP_REASON_LENGTH


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"sampling_params": {"top_p": 2}}, "top_p is 2.0"),
        ({"sampling_params": {"max_tokens": 0}}, "max_tokens is 0"),
        ({"topk_prompt_logprobs": -1}, "topk_prompt_logprobs is -1"),
        ({"prompt_logprobs": True, "prompt_logprobs_last_n": 4}, "prompt_logprobs_last_n is 4"),
        ({"prompt_logprobs_last_n": 2}, "prompt_logprobs_last_n is set and prompt_logprobs is not"),
        ({"target_prompt_logprobs": {"data": [1], "shape": [1, 1]}}, "target_prompt_logprobs.shape"),
        ({"prompt": {"chunks": []}}, "prompt"),
        ({"prompt": {"chunks": [{"type": "image_asset_pointer", "location": "/etc/passwd"}]}}, "image_asset_pointer"),
        ({"num_samples": 10_000}, "num_samples is 10000"),
        ({"base_model": TINY.name}, "base_model is set"),
        ({"model_path": "tinker://x/sampler_weights/y"}, "model_path is set"),
    ],
)
async def test_what_can_not_be_served_is_refused_by_its_name_on_the_wire(client: Wire, body: dict, named: str):
    sampler = await client.sampler(base_model=TINY.name)
    refused = await client.ask(sampler, **body)
    assert refused.status_code == 400
    assert named in refused.json()["detail"]


@pytest.mark.parametrize(
    "body",
    [
        {"sampling_params": {"max_tokens": 2**40}},
        {"sampling_params": {"top_k": 2**70}},
        {"sampling_params": {"stop": [2**70]}},
        {"prompt": {"chunks": [{"type": "encoded_text", "tokens": [2**70]}]}},
        {"target_prompt_logprobs": {"data": [2**70], "shape": [3, 1]}},
        {"seq_id": 2**70},
    ],
    ids=str,
)
async def test_numbers_that_nothing_behind_takes_are_refused(client: Wire, body: dict):
    sampler = await client.sampler(base_model=TINY.name)
    assert (await client.ask(sampler, **body)).status_code == 422


async def test_an_image_for_a_model_that_reads_none_and_an_unknown_token_fail_by_name(client: Wire):
    sampler = await client.sampler(base_model=TINY.name)
    image = {"chunks": [{"type": "image", "data": "AAAA", "format": "png"}]}
    failed = await client.sample(sampler, prompt=image)
    assert (failed["category"], "reads none" in failed["error"]) == ("user", True)
    failed = await client.sample(sampler, seq_id=1, tokens=(5, 10**6))
    assert (failed["category"], "prompt[1] is 1000000" in failed["error"]) == ("user", True)


async def test_checkpoints_are_sampled_by_their_paths_until_they_are_gone(client: Wire):
    record = await published(client)
    sampler = await client.sampler(model_path=record.path)
    told = (await client.http.get(f"/api/v1/samplers/{sampler}")).json()
    assert told == {"sampler_id": sampler, "base_model": TINY.name, "model_path": record.path}
    assert (await client.sample(sampler, sampling_params={"max_tokens": 1})).sequences
    client.gateway.records.checkpoints.delete(record.path)
    SnapshotStore(client.gateway.runtime.store).delete(record.handle)
    gone = await client.ask(sampler, seq_id=1)
    assert (gone.status_code, record.path in gone.json()["detail"]) == (404, True)


async def test_an_inflight_session_samples_what_its_model_published_last(client: Wire):
    first, second = await published(client), await published(client)
    sampler = await client.sampler(base_model=TINY.name)
    records = client.gateway.records
    made = {"tenant": "local", "session_id": client.session, "base_model": TINY.name, "rank": 2, "optimizer": "adamw"}
    records.models.put(ModelRecord(model_id="m", created_at=0.0, used_at=0.0, inflight=first.handle, **made))
    found = records.samplers.get(sampler)
    assert found is not None
    records.samplers.put(replace(found, kind="inflight", model_id="m"))
    await client.sample(sampler, sampling_params={"max_tokens": 1})
    assert client.gateway.serving.held(TINY.name) == (first.handle,)
    records.models.update("m", inflight=second.handle)
    await client.sample(sampler, seq_id=1, sampling_params={"max_tokens": 1})
    assert client.gateway.serving.held(TINY.name) == (first.handle, second.handle)


async def test_too_much_is_sent_away_at_once_with_the_time_to_come_back(client: Wire, monkeypatch: pytest.MonkeyPatch):
    client.gateway.crowding = Crowding(of_model=4, of_tenant=3)
    refused = threading.Event()
    hold_steps(monkeypatch, {0: refused})
    sampler = await client.sampler(base_model=TINY.name)
    long = {"max_tokens": 200, "stop": []}
    first = await client.ask(sampler, num_samples=3, sampling_params=long)
    assert first.status_code == 200
    full = await client.ask(sampler, seq_id=1, num_samples=1, sampling_params=long)
    assert full.status_code == 429
    assert int(full.headers["Retry-After"]) >= 1
    assert "3 samples under way" in full.json()["detail"]
    refused.set()
    await client.fetch(first.json()["request_id"])
    assert (await client.ask(sampler, seq_id=1, num_samples=1, sampling_params=long)).status_code == 200


async def test_a_cancelled_request_stops_and_its_place_is_free(client: Wire, monkeypatch: pytest.MonkeyPatch):
    hold_steps(monkeypatch, {10: when_cancelled(monkeypatch)})
    sampler = await client.sampler(base_model=TINY.name)
    promised = (await client.ask(sampler, num_samples=50, sampling_params={"max_tokens": 400, "stop": []})).json()
    for _ in range(2):
        cancelled = await client.post("cancel_future", request_id=promised["request_id"])
        assert (cancelled.status_code, cancelled.content) == (204, b"")
    assert "cancelled" in (await client.fetch(promised["request_id"]))["error"]
    assert client.gateway.crowding.under_way(TINY.name) == 0
    assert (await client.post("cancel_future", request_id="unknown")).status_code == 204
    training = client.gateway.futures.open("local", "forward_backward")
    assert (await client.post("cancel_future", request_id=training.request_id)).status_code == 400


async def test_a_session_tells_what_is_done_once_to_each_cursor(client: Wire):
    sampler = await client.sampler(base_model=TINY.name)
    target = {"type": "sampling_session", "sampling_session_id": sampler, "cloned_sampler_id": 0}
    promised = (await client.ask(sampler, sampling_params={"max_tokens": 1})).json()["request_id"]
    await client.fetch(promised)
    before = (await client.post("retrieve_futures", target=target, prev_cursor=0)).json()
    assert [entry["request_id"] for entry in before["completions"]] == [promised]
    assert before["completions"][0]["response_payload_uncompressed_size"] > 0
    waiting = asyncio.create_task(client.post("retrieve_futures", target=target, prev_cursor=before["cursor"]))
    failing = (await client.ask(sampler, seq_id=1, tokens=(10**6,))).json()["request_id"]
    after = (await waiting).json()
    assert after["completions"] == [{"state": "failed", "request_id": failing}]
    elsewhere = (await client.ask(sampler, seq_id=10**9, sampling_params={"max_tokens": 1})).json()["request_id"]
    await client.fetch(elsewhere)
    seen = {"target": target, "prev_cursor": after["cursor"], "timeout": 0, "retrieved_request_ids": [promised]}
    assert (await client.post("retrieve_futures", **seen)).json() == {"completions": [], "cursor": after["cursor"]}
    assert (await client.post("retrieve_future", request_id=promised)).status_code == 410
    clone = target | {"cloned_sampler_id": 1}
    of_clone = (await client.post("retrieve_futures", target=clone)).json()["completions"]
    assert [entry["request_id"] for entry in of_clone] == [elsewhere]


async def test_copies_of_a_client_are_numbered(client: Wire):
    sampler = await client.sampler(base_model=TINY.name)
    numbers = [
        (await client.post("join_sampling_session", sampling_session_id=sampler)).json()["client_counter"] for _ in "ab"
    ]
    assert numbers == [1, 2]


async def test_a_session_and_number_make_one_sampler_however_often_it_is_asked_for(client: Wire):
    body = {"session_id": client.session, "sampling_session_seq_id": 7, "base_model": TINY.name}
    one, two = [(await client.post("create_sampling_session", **body)).json() for _ in "ab"]
    assert one == two == {"type": "create_sampling_session", "sampling_session_id": f"{client.session}:sample:7"}
    other = await published(client)
    clash = await client.post("create_sampling_session", **body | {"base_model": None, "model_path": other.path})
    assert clash.status_code == 400
    nothing = await client.post("create_sampling_session", session_id=client.session, sampling_session_seq_id=8)
    assert "neither base_model nor model_path" in nothing.json()["detail"]
    unserved = await client.post("create_sampling_session", **body | {"sampling_session_seq_id": 8, "base_model": "x"})
    assert "'x', which is not served" in unserved.json()["detail"]


async def test_what_is_anothers_is_unknown(client: Wire):
    private, public = await published(client, tenant="other"), await published(client, tenant="other", public=True)
    sampler = await client.sampler(model_path=public.path)
    assert (await client.sample(sampler, sampling_params={"max_tokens": 1})).sequences
    refused = await client.post(
        "create_sampling_session", session_id=client.session, sampling_session_seq_id=9, model_path=private.path
    )
    assert refused.status_code == 404
    records = client.gateway.records
    found = records.samplers.get(sampler)
    assert found is not None
    records.samplers.put(replace(found, sampler_id="theirs", tenant="other"))
    for asked in (
        client.ask("theirs"),
        client.http.get("/api/v1/samplers/theirs"),
        client.post("join_sampling_session", sampling_session_id="theirs"),
        client.post("retrieve_futures", target={"sampling_session_id": "theirs"}),
    ):
        assert (await asked).status_code == 404


async def test_images_stand_in_a_prompt_where_they_were_put(tmp_path: Path):
    model = ServedModel(name="seeing", base_model="tiny-qwen2-vl")
    image = Image.of(np.arange(48 * 32, dtype=np.uint8).reshape(32, 48))
    rule = load_tokenizer(model.catalogue_name).images
    assert rule is not None
    chunk = rule.chunk(image)
    part = {"type": "image", "data": base64.b64encode(image.data).decode(), "format": "png"}
    text = [{"type": "encoded_text", "tokens": [5, 6]}, {"type": "encoded_text", "tokens": [7]}]
    params = {"max_tokens": 3, "temperature": 0, "stop": []}
    async with wired(tmp_path, model) as client:
        sampler = await client.sampler(base_model=model.name)
        prompt = {"chunks": [text[0], part | {"expected_tokens": chunk.token_count}, text[1]]}
        response = await client.sample(sampler, prompt=prompt, sampling_params=params, prompt_logprobs=True)
        async with client.gateway.serving.loaded(model.name) as snapshot:
            request = SamplingRequest(
                prompt=(5, 6, *[chunk.placeholder] * chunk.token_count, 7),
                images=(chunk,),
                snapshot=snapshot,
                params=SamplingParams(max_tokens=3, temperature=0, default_stops=False),
                prompt_logprobs=True,
            )
            expected = await client.gateway.runtime.engines_of(model.name).sampler.sample(request)
        assert ints(response.sequences[0].tokens) == list(expected.samples[0].tokens)
        assert floats(response.prompt_logprobs)[1:] == pytest.approx(expected.prompt_logprobs, abs=1e-6)
        wrong = [
            (part | {"expected_tokens": 99}, f"takes {chunk.token_count} positions"),
            (part | {"format": "jpeg"}, "its data is 'png'"),
            (part | {"data": "%"}, "no base64"),
            (part | {"data": "AAAA"}, "can't be read"),
        ]
        for seq_id, (given, named) in enumerate(wrong, start=1):
            failed = await client.sample(sampler, seq_id=seq_id, prompt={"chunks": [given]})
            assert (failed["category"], named in failed["error"]) == ("user", True), failed
