"""The Tinker API's bodies, JSON and protobuf, whole and broken: none makes the service fail, and nothing is left.

A few hundred in the usual run; 100,000 with `-m exhaustive -s`, which prints what it measured.
"""

from __future__ import annotations

import gc
import json
import random
from collections.abc import Iterator
from typing import Any

import pyrage
import pytest
import zstandard
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.gateway.fuzzing import Fuzzed, Pace, memory
from tinker.proto import tinker_public_pb2 as wire

MANY = 100_000


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fuzzed]:
    with Fuzzed(tmp_path_factory.mktemp("fuzzed")) as fuzzed:
        yield fuzzed


# --------------------------------------------------------------------------------------------------------- JSON

NUMBERS = st.sampled_from([0, -1, 1, 2, 3, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63), 10**40, 0.5, -0.0, 1e308, 5e-324])
TEXTS = st.sampled_from(["", "x", "\0", "é", "\U0001f600", "../../etc/passwd", "tinker://", "a" * 300, "-1", "\u202e"])
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS | st.text(max_size=8) | st.integers(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=6,
)
PROMPT = {"chunks": [{"type": "encoded_text", "tokens": [5, 6, 7]}]}
BODIES: dict[str, dict[str, Any]] = {
    "client/config": {"sdk_version": "0.38.0"},
    "create_session": {"tags": ["a"], "user_metadata": {"k": "v"}, "sdk_version": "0.38.0"},
    "session_heartbeat": {"session_id": ""},
    "telemetry": {"events": []},
    "create_model": {
        "session_id": "",
        "model_seq_id": 0,
        "base_model": "",
        "lora_config": {"rank": 1, "seed": 0, "train_mlp": True},
    },
    "load_weights": {
        "session_id": "",
        "model_seq_id": 0,
        "path": "",
        "optimizer": False,
        "weights_access_token": "tml-x",
        "optimizer_config": {"type": "adamw"},
    },
    "save_weights": {"model_id": "", "seq_id": None, "path": "x", "ttl_seconds": 3600, "user_metadata": {"a": "b"}},
    "save_weights_for_sampler": {"model_id": "", "seq_id": None, "sampling_session_seq_id": 7, "kind": "inflight"},
    "save_weights_external": {
        "model_id": "",
        "seq_id": None,
        "path": "x",
        "age_encryption_recipients": [str(pyrage.x25519.Identity.generate().to_public())],
    },
    "auth/token": {},
    "get_info": {"model_id": ""},
    "optim_step": {"model_id": "", "seq_id": None, "adam_params": {"learning_rate": 1e-4, "beta1": 0.9}},
    "forward": {
        "model_id": "",
        "seq_id": None,
        "forward_input": {
            "data": [
                {
                    "model_input": PROMPT,
                    "loss_fn_inputs": {
                        "target_tokens": {"data": [6, 7, 8], "dtype": "int64", "shape": [3]},
                        "weights": {"data": [1.0, 1.0, 1.0], "dtype": "float32", "shape": [3]},
                    },
                }
            ],
            "loss_fn": "cross_entropy",
            "loss_fn_config": {},
        },
    },
    "create_sampling_session": {"session_id": "", "sampling_session_seq_id": 0, "base_model": ""},
    "asample": {
        "sampling_session_id": "",
        "seq_id": 0,
        "prompt": PROMPT,
        "sampling_params": {"max_tokens": 1, "temperature": 1.0, "top_k": -1, "top_p": 1.0, "seed": 1, "stop": []},
        "num_samples": 1,
        "prompt_logprobs": False,
        "topk_prompt_logprobs": 0,
    },
    "cancel_future": {"request_id": "x"},
    "retrieve_future": {"request_id": "x", "allow_metadata_only": False},
    "retrieve_futures": {
        "target": {"type": "sampling_session", "sampling_session_id": "", "cloned_sampler_id": 0},
        "prev_cursor": 0,
        "timeout": 0,
        "retrieved_request_ids": [],
    },
    "join_sampling_session": {"sampling_session_id": ""},
    "weights_info": {"tinker_path": ""},
    "copy_weights": {"source_path": "", "session_id": "", "model_seq_id": 0, "weights_access_token": "tml-x"},
    "sessions/search": {
        "user_metadata": {"k": "v"},
        "owner": {"type": "user", "owner_urns": ["x"]},
        "statuses": [{"type": "client_finished", "reasons": ["success"]}],
        "cursor": {"last_created_at": "2026-01-01T00:00:00Z", "last_session_id": "x"},
        "limit": 2,
    },
}
RARE = {"create_model", "load_weights", "copy_weights", *(route for route in BODIES if route.startswith("save_"))}
"""What makes something that stays as long as its session."""


def named(value: Any, ids: dict[str, Any]) -> Any:
    """A body with the client's own ids in place of empty ones."""
    if isinstance(value, dict):
        return {key: ids.get(key, inner) if inner == "" else named(inner, ids) for key, inner in value.items()}
    return [named(inner, ids) for inner in value] if isinstance(value, list) else value


@st.composite
def changed(draw: st.DrawFn, body: Any) -> Any:
    """A body with something of it left out, put in, or in another's place, at any depth."""
    if isinstance(body, dict) and body and draw(st.integers(0, 3)):
        key = draw(st.sampled_from(sorted(body)))
        kind = draw(st.integers(0, 5))
        rest = {name: value for name, value in body.items() if name != key}
        if kind == 0:
            return rest
        if kind == 1:
            return {**body, draw(st.text(max_size=5)): draw(VALUES)}
        return {**rest, key: draw(changed(body[key]))}
    if isinstance(body, list) and body and draw(st.booleans()):
        place = draw(st.integers(0, len(body) - 1))
        return [*body[:place], draw(changed(body[place])), *body[place + draw(st.integers(0, 1)) :]]
    return draw(VALUES)


@st.composite
def json_inputs(draw: st.DrawFn) -> tuple[str, Any]:
    often = [route for route in BODIES if route not in RARE]
    route = draw(st.sampled_from(often if draw(st.integers(0, 30)) else sorted(RARE)))
    body = BODIES[route]
    return route, draw(changed(body)) if draw(st.integers(0, 9)) else body


SPOILS = (b"\xff", b'"', b"{", b"NaN", b"\\ud800", b"\0", b"[" * 70, b"9" * 400, b"\x80" * 9, b"")
VARIANTS = 5
"""Inputs from each that is drawn: as it is, and with bytes of it changed."""


def variants(content: bytes, seed: int) -> Iterator[bytes]:
    """A body as it is, and with a piece replaced, taken out, or put in."""
    yield content
    luck = random.Random(seed)
    for _ in range(VARIANTS - 1):
        start = luck.randrange(len(content) + 1)
        end = min(len(content), start + luck.choice((0, 1, 1, 4, 30)))
        put = luck.choice((luck.choice(SPOILS), luck.randbytes(end - start), content[:20]))
        yield content[:start] + put + content[end:]


def give_json(fuzzed: Fuzzed, given: tuple[str, Any], seed: int) -> None:
    route, body = given
    whole = json.dumps(named(body, fuzzed.ids)).encode()
    for content in variants(whole, seed):
        fuzzed.send(f"/api/v1/{route}", content, content_type="application/json")


# ----------------------------------------------------------------------------------------------------- protobuf

BYTES = st.binary(max_size=32) | st.sampled_from([b"", b"\1\0\0\0" * 3, b"\0\0\x80\x7f" * 3, b"\0\0\xc0\x7f" * 3])
SHAPES = st.lists(st.sampled_from([0, 1, 2, 3, -1, 2**31, 2**62, -(2**63)]), max_size=3)
NAMES = st.sampled_from(
    ["target_tokens", "weights", "logprobs", "advantages", "mask", "sequence_ratio_mask", "reference_logprobs", "", "x"]
)
LOSSES = st.sampled_from(
    ["cross_entropy", "importance_sampling", "ppo", "cispo", "dro", "gspo", "stable_reinforce", "custom", "", "nope"]
)
F32, I64 = 1, 2
NEXT = 12345
"""Stands for the number of the model's next command."""


@st.composite
def tensors(draw: st.DrawFn) -> wire.Tensor:
    tensor = wire.Tensor(dtype=draw(st.integers(0, 5)), shape=draw(SHAPES))
    if draw(st.booleans()):
        tensor.dense = draw(BYTES)
    else:
        tensor.sparse_csr.values = draw(BYTES)
        tensor.sparse_csr.crow_indices = draw(BYTES | st.just(b"\0" * 8 + b"\3" + b"\0" * 7))
        tensor.sparse_csr.col_indices = draw(BYTES)
    return tensor


def _good(datum: wire.Datum, loss: str) -> None:
    """What a loss takes, for three tokens."""
    import numpy as np

    chunk = datum.model_input.add()
    chunk.encoded_text.tokens = np.array([5, 6, 7], "<i4").tobytes()
    floats = {"cross_entropy": ["weights"]}.get(loss, ["logprobs", "advantages"])
    datum.loss_fn_inputs["target_tokens"].CopyFrom(
        wire.Tensor(dtype=I64, shape=[3], dense=np.array([6, 7, 8], "<i8").tobytes())
    )
    for name in floats:
        datum.loss_fn_inputs[name].CopyFrom(
            wire.Tensor(dtype=F32, shape=[3], dense=np.array([-0.5, 0.5, 1.0], "<f4").tobytes())
        )


@st.composite
def messages(draw: st.DrawFn) -> wire.ForwardBackwardRequest:
    loss = draw(LOSSES)
    message = wire.ForwardBackwardRequest(
        loss_fn=loss,
        seq_id=draw(st.sampled_from([NEXT] * 200 + [0, 1, -1, 2**31 - 1])),
        forward_only=draw(st.booleans()),
    )
    for name in draw(st.lists(st.sampled_from(["beta", "clip_low_threshold", "x", ""]), max_size=2)):
        message.loss_fn_config[name] = draw(st.sampled_from([0.0, -1.0, 1e30, float("nan"), float("inf")]))
    for _ in range(draw(st.integers(0, 2))):
        datum = message.data.add()
        if draw(st.integers(0, 2)):
            _good(datum, loss)
        for _ in range(draw(st.integers(0, 1))):
            chunk = datum.model_input.add()
            kind = draw(st.integers(0, 2))
            if kind == 0:
                chunk.encoded_text.tokens = draw(BYTES)
            elif kind == 1:
                chunk.image.data = draw(BYTES)
                chunk.image.format = draw(st.sampled_from(["png", "jpeg", "", "x"]))
        for _ in range(draw(st.integers(0, 2))):
            datum.loss_fn_inputs[draw(NAMES)].CopyFrom(draw(tensors()))
    return message


def give_message(fuzzed: Fuzzed, message: wire.ForwardBackwardRequest, seed: int, pack: int) -> None:
    message.model_id = fuzzed.ids["model_id"]
    if message.seq_id == NEXT:
        message.seq_id = fuzzed.next_command
    whole = message.SerializeToString()
    headers = {"content_type": "application/x-protobuf"}
    if pack:
        headers["content_encoding"] = "zstd"
        whole = zstandard.ZstdCompressor(level=1).compress(whole)
    for content in variants(whole, seed):
        fuzzed.send("/api/v1/forward_backward", content, **headers)


# --------------------------------------------------------------------------------------------------------- runs


def fuzz(fuzzed: Fuzzed, count: int) -> None:
    """Give so many inputs, half of them JSON."""
    plain = settings(
        max_examples=max(count // 2 // VARIANTS, 1),
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        derandomize=count < 1000,
    )

    seeds = st.integers(0, 2**32)

    def turn_over() -> None:
        if fuzzed.asked - fuzzed.fresh_at > 1000 or fuzzed.stuck:
            fuzzed.fresh()

    @plain
    @given(json_inputs(), seeds)
    def of_json(asked: tuple[str, Any], seed: int) -> None:
        give_json(fuzzed, asked, seed)
        turn_over()

    @plain
    @given(messages(), seeds, st.sampled_from([0, 0, 0, 1]))
    def of_protobuf(message: wire.ForwardBackwardRequest, seed: int, pack: int) -> None:
        give_message(fuzzed, message, seed, pack)
        turn_over()

    of_json()
    of_protobuf()


def test_no_body_of_some_hundreds_makes_the_service_fail(fuzzed: Fuzzed):
    fuzz(fuzzed, 600)
    assert fuzzed.statuses.get(200, 0) > 50  # it isn't only refused at the door
    assert fuzzed.statuses.get(400, 0) + fuzzed.statuses.get(422, 0) > 100


@pytest.mark.exhaustive
@pytest.mark.timeout(3 * 3600)
def test_none_of_a_hundred_thousand_does_and_memory_stays_flat(fuzzed: Fuzzed, capsys: pytest.CaptureFixture[str]):
    pace, tenth = Pace(), MANY // 10
    sizes: list[int] = []
    for part in range(1, 11):
        fuzz(fuzzed, tenth)
        fuzzed.fresh()
        gc.collect()
        sizes.append(memory())
        with capsys.disabled():
            rate = pace.rate(part * tenth)
            print(f"\n{part * tenth} inputs, {rate:.0f}/s, {sizes[-1] >> 20} MiB, {fuzzed.statuses}", flush=True)  # noqa: T201
    # the first fifth warms caches up
    assert sizes[-1] < 1.1 * sizes[1], [size >> 20 for size in sizes]
