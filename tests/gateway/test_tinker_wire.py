"""Batches on the wire, and what they become."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest
import torch
import zstandard
from tinker import types
from tinker.proto import tinker_public_pb2 as wire
from tinker.proto.request_conv import forward_backward_request_to_proto
from tinker.proto.response_conv import deserialize_forward_backward_output

from tinker_actors.data import Datum, Image, ImageChunk, ModelInput, TextChunk
from tinker_actors.errors import ConfigError, DataError
from tinker_actors.gateway.refusals import RefusalError
from tinker_actors.gateway.tinker import batches
from tinker_actors.gateway.tinker.batches import Batch, Row
from tinker_actors.gateway.tinker.losses import datums_of, image_targets, loss_of
from tinker_actors.gateway.tinker.outputs import answer_of
from tinker_actors.gateway.tinker.tensors import of_protobuf as of_tensor
from tinker_actors.models import load_tokenizer
from tinker_actors.training.contract import ForwardBackwardResult

TOKENS = [1, 2, 3]


def sent(inputs: dict[str, Any], loss: str = "cross_entropy", **config: float | str) -> bytes:
    """A request's body, as the official client writes it."""
    datum = types.Datum(model_input=types.ModelInput.from_ints(TOKENS), loss_fn_inputs=inputs)
    asked: Any = types.ForwardBackwardInput(data=[datum], loss_fn=loss, loss_fn_config=config or None)  # pyright: ignore
    request = types.ForwardBackwardRequest(forward_backward_input=asked, model_id="m", seq_id=3)
    return forward_backward_request_to_proto(request).SerializeToString()


def read(body: bytes, surrogate: Any = None) -> list[Datum]:
    batch = batches.of_protobuf(body)
    return datums_of(batch.rows(None), loss_of(batch.loss, batch.settings, surrogate=surrogate))


def rl(**more: Any) -> dict[str, Any]:
    return {"target_tokens": [2, 3, 4], "logprobs": [0.0, -0.5, -0.25], "advantages": [0.0, 0.0, 2.0], **more}


def mask(values: list[float]) -> types.TensorData:
    return types.TensorData(data=values, dtype="float32", shape=[len(values)])


def test_a_supervised_batch_arrives_as_it_was_sent():
    body = sent({"target_tokens": [2, 3, 4], "weights": [0.0, 0.5, 1.0]})
    batch = batches.of_protobuf(body)
    assert (batch.model_id, batch.seq_id, batch.loss, batch.forward_only) == ("m", 3, "cross_entropy", False)
    expected = Datum(model_input=ModelInput.of(TOKENS), targets=(2, 3, 4), weights=(0.0, 0.5, 1.0), where="datum 0")
    assert read(body) == [expected]


def test_weights_that_are_not_given_are_one():
    assert read(sent({"target_tokens": [2, 3, 4]}))[0].weights == (1.0, 1.0, 1.0)


def test_what_is_trained_never_follows_from_an_advantage():
    (datum,) = read(sent(rl(), "importance_sampling"))
    assert (datum.mask, datum.sampled_tokens, datum.advantages) == ((1, 1, 1), 3, (0.0, 0.0, 2.0))
    (masked,) = read(sent(rl(mask=mask([0.0, 1.0, 1.0])), "importance_sampling"))
    assert (masked.mask, masked.advantages) == ((0, 1, 1), (0.0, 0.0, 2.0))
    (ratio,) = read(sent(rl(sequence_ratio_mask=[0.0, 1.0, 1.0]), "gspo"))
    assert ratio.mask == (0, 1, 1)


def test_positions_of_images_are_no_targets():
    image = ImageChunk(data=b"x", format="png", token_count=2, placeholder=9)
    model_input = ModelInput(chunks=(TextChunk(tokens=(1, 2)), image, TextChunk(tokens=(3,))))
    assert image_targets(model_input, 5).tolist() == [False, True, True, False, False]
    inputs = {"target_tokens": np.array([2, 9, 9, 3, 4])}
    zeros = np.zeros(5, np.float32)
    row = Row(model_input=model_input, inputs={**inputs, "logprobs": zeros, "advantages": zeros})
    assert datums_of([row], loss_of("ppo", {}))[0].mask == (1, 0, 0, 1, 1)
    supervised = datums_of([Row(model_input=model_input, inputs=inputs)], loss_of("cross_entropy", {}))
    assert supervised[0].weights == (1.0, 0.0, 0.0, 1.0, 1.0)


def test_a_batch_of_very_many_datums_is_refused_before_any_is_read(monkeypatch):
    monkeypatch.setattr(batches, "MOST_DATUMS", 3)
    one = wire.ForwardBackwardRequest(data=[wire.Datum()]).SerializeToString()
    in_json = '{"model_id": "m", "forward_input": {"loss_fn": "ppo", "data": [%s]}}'
    assert batches.of_protobuf(one * 3).size == len(one) * 3
    assert batches.of_json((in_json % "{},{},{}").encode(), forward_only=True).loss == "ppo"
    for read in (
        lambda: batches.of_protobuf(one * 4),
        lambda: batches.of_json((in_json % "{},{},{},{}").encode(), forward_only=True),
    ):
        with pytest.raises(RefusalError, match="4 datums; at most 3") as refused:
            read()
        assert refused.value.status == 413


def test_an_image_is_read_if_it_is_what_its_sender_thinks():
    rule = load_tokenizer("tiny-qwen2-vl").images
    assert rule is not None
    image = Image.of(np.zeros((32, 48), np.uint8))
    chunk = batches.image_chunk(image.data, "png", len(rule.chunk(image)), rule)
    assert chunk == batches.image_chunk(image.data, "", None, rule) == rule.chunk(image)
    for format, expected, message in (
        ("jpeg", None, "'jpeg', but its data is 'png'"),
        ("png", 99, "is 99, but the base"),
    ):
        with pytest.raises(DataError, match=message):
            batches.image_chunk(image.data, format, expected, rule)
    with pytest.raises(DataError, match="the base model reads none"):
        batches.image_chunk(image.data, "png", None, None)


def test_candidates_arrive_dense_and_sparse_and_each_once():
    targets = torch.tensor([[5, 6, 0, 0, 0, 0], [7, 0, 0, 0, 0, 0], [8, 9, 0, 0, 0, 0]])
    weights = torch.tensor([[0.5, 0.5, 0, 0, 0, 0], [1.0, 0, 0, 0, 0, 0], [0.25, 0.75, 0, 0, 0, 0]])
    sparse = sent({"target_tokens": targets, "weights": weights})
    dense = sent({"target_tokens": targets.numpy(), "weights": weights.numpy()})
    assert len(sparse) < len(dense)
    assert read(sparse) == read(dense)
    (datum,) = read(sparse)
    assert datum.topk_targets == ((0, 5, 6), (0, 7), (0, 8, 9))
    assert datum.topk_weights == ((0.0, 0.5, 0.5), (0.0, 1.0), (0.0, 0.25, 0.75))
    twice = sent({"target_tokens": [[5, 5], [6, 7], [8, 8]], "weights": [[0.25, 0.5], [0.0, 1.0], [0.5, 0.5]]})
    assert read(twice)[0].topk_weights == ((0.75,), (0.0, 1.0), (1.0,))


def test_log_probs_of_candidates_have_the_shape_of_the_targets():
    body = sent({"target_tokens": [[5, 5], [7, 6], [8, 0]], "weights": [[0.5, 0.5]] * 3})
    rows = batches.of_protobuf(body).rows(None)
    found = ForwardBackwardResult(loss=1.0, logprobs=((-1.0, -6.0, -7.0, -0.5, -8.0),), metrics={"loss_sum": 1.0})
    answer = answer_of(found, rows, loss_of("cross_entropy", {}))
    output = deserialize_forward_backward_output(answer.content)
    assert output.loss_fn_outputs[0]["logprobs"].tolist() == [[-1.0, -1.0], [-7.0, -6.0], [-8.0, -0.5]]
    assert answer.plain is not None
    plain = answer.plain()["loss_fn_outputs"][0]["logprobs"]
    assert (plain["shape"], plain["data"]) == ([3, 2], [-1.0, -1.0, -7.0, -6.0, -8.0, -0.5])


def test_rows_of_different_shapes_arrive_at_the_client_in_their_order():
    rows = [
        Row(model_input=ModelInput.of(TOKENS), inputs={"target_tokens": np.array(targets)})
        for targets in ([1, 2, 3], [[1, 2], [3, 4], [5, 6]], [[4], [5], [6]], [7, 8, 9])
    ]
    logprobs = tuple(tuple(-float(value) for value in row.inputs["target_tokens"].reshape(-1)) for row in rows)
    found = ForwardBackwardResult(loss=1.0, logprobs=logprobs, metrics={"loss_sum": 1.0, "tokens": 3.0})
    output = deserialize_forward_backward_output(answer_of(found, rows, loss_of("cross_entropy", {})).content)
    shapes = [found["logprobs"].shape for found in output.loss_fn_outputs]
    assert shapes == [[3], [3, 2], [3, 1], [3]]
    assert output.loss_fn_outputs[1]["logprobs"].tolist() == [[-1.0, -2.0], [-3.0, -4.0], [-5.0, -6.0]]
    assert output.metrics == {"loss:sum": 1.0, "tokens:sum": 3.0}


def test_settings_have_the_names_of_the_api():
    ppo = batches.of_protobuf(sent(rl(), "ppo", clip_low_threshold=0.5, clip_high_threshold=1.5))
    config = loss_of(ppo.loss, ppo.settings).config
    assert (config.clip_low, config.clip_high) == (0.5, 1.5)
    assert loss_of("dro", {"beta": 0.25}).config.beta == 0.25
    assert loss_of("cispo", {}).config.clip_bounds == (0.0, 4.0)
    with pytest.raises(ConfigError, match=r"beta = 0.5; ppo takes"):
        loss_of("ppo", {"beta": 0.5})
    with pytest.raises(ConfigError, match="micro_batch_tokens"):
        loss_of("ppo", {"micro_batch_tokens": 1.0})


def test_a_closed_objective_is_refused_by_name_unless_a_surrogate_was_named():
    with pytest.raises(ConfigError, match="'stable_reinforce', whose objective isn't public"):
        loss_of("stable_reinforce", {})
    found = loss_of("stable_reinforce", {"kl_coeff": 0.125, "alpha": 3.0}, surrogate="cispo")
    assert (found.config.name, found.config.kl_coefficient, found.near_sampler) == ("cispo", 0.125, True)
    (datum,) = read(sent(rl(), "stable_reinforce", kl_coeff=0.125), surrogate="cispo")
    assert datum.reference_logprobs == datum.logprobs
    with pytest.raises(ConfigError, match="run by the service"):
        loss_of("custom", {"loss_id": "x"})
    with pytest.raises(ConfigError, match="loss_fn is 'no_such'"):
        loss_of("no_such", {})


@pytest.mark.parametrize(
    ("inputs", "loss", "message"),
    [
        ({"weights": [1.0, 1.0, 1.0]}, "cross_entropy", "datum 0: loss_fn_inputs has no 'target_tokens'"),
        ({"target_tokens": [2, 3, 4], "weights": [1.0]}, "cross_entropy", "weights has shape .1.; one per target"),
        ({"target_tokens": [[2, 3]] * 3}, "cross_entropy", "weights has shape None"),
        ({"target_tokens": [2, 3]}, "cross_entropy", "model_input has 3 positions for 2 targets"),
        (rl(), "cross_entropy", "loss_fn_inputs has 'advantages'; cross_entropy takes"),
        ({"target_tokens": [2, 3, 4], "logprobs": [0.0] * 3}, "ppo", "no 'advantages'"),
        (rl(weights=[1.0] * 3), "ppo", "loss_fn_inputs has 'weights'; ppo takes target_tokens, logprobs"),
        (rl(mask=mask([0.0, 0.5, 1.0])), "ppo", "mask.1. is 0.5; 0 or 1"),
        (rl(sequence_ratio_mask=[1.0, 1.0, 0.0]), "gspo", "advantages.2. is 2.0 where sequence_ratio_mask is 0"),
        (rl(sequence_ratio_mask=[1.0, 1.0, 1.0]), "ppo", "has 'sequence_ratio_mask'"),
        (rl(advantages=[0.0, float("nan"), 1.0]), "ppo", "advantages.1. is nan"),
        ({"target_tokens": mask([2.0, 3.0, 4.0])}, "cross_entropy", "target_tokens has dtype float32"),
    ],
)
def test_what_is_wrong_with_a_datum_is_named(inputs: dict[str, Any], loss: str, message: str):
    with pytest.raises(DataError, match=message):
        read(sent(inputs, loss))


def test_a_sparse_tensor_that_does_not_fit_itself_or_the_memory_is_refused():
    def broken(**parts: Any) -> bytes:
        message = wire.ForwardBackwardRequest(model_id="m", seq_id=1, loss_fn="cross_entropy")
        tensor = message.data.add().loss_fn_inputs["target_tokens"]
        tensor.dtype = wire.DTYPE_INT64
        tensor.shape.extend(parts.get("shape", [2, 4]))
        tensor.sparse_csr.values = np.array(parts.get("values", [5, 6]), np.int64).tobytes()
        tensor.sparse_csr.crow_indices = np.array(parts.get("crow", [0, 1, 2]), np.int64).tobytes()
        tensor.sparse_csr.col_indices = np.array(parts.get("columns", [0, 1]), np.int64).tobytes()
        return message.SerializeToString()

    assert batches.of_protobuf(broken()).rows(None)[0].inputs["target_tokens"].tolist() == [[5, 0, 0, 0], [0, 6, 0, 0]]
    for parts in (
        {"shape": [2, 2**40]},
        {"shape": [2, -4]},
        {"shape": [8]},
        {"crow": [0, 2, 1]},
        {"crow": [0, 1]},
        {"crow": [1, 1, 2]},
        {"columns": [0, 4]},
        {"columns": [-1, 0]},
        {"values": [5]},
    ):
        with pytest.raises(DataError, match="datum 0: target_tokens is sparse"):
            batches.of_protobuf(broken(**parts)).rows(None)


def test_numbers_of_every_type_are_read():
    def tensor(kind: int, content: bytes) -> list[float]:
        message = wire.ForwardBackwardRequest()
        message.data.add().loss_fn_inputs["x"].CopyFrom(wire.Tensor(dtype=kind, dense=content))  # pyright: ignore
        return batches.of_protobuf(message.SerializeToString()).rows(None)[0].inputs["x"].tolist()

    assert tensor(wire.DTYPE_INT32, np.array([1, -2], np.int32).tobytes()) == [1, -2]
    halves = torch.tensor([1.5, -0.25], dtype=torch.bfloat16).view(torch.int16).numpy().tobytes()
    assert tensor(wire.DTYPE_BFLOAT16, halves) == [1.5, -0.25]
    with pytest.raises(DataError, match="3 bytes; a multiple of 4"):
        tensor(wire.DTYPE_FLOAT32, b"abc")
    with pytest.raises(DataError, match="dtype 0"):
        tensor(wire.DTYPE_UNSPECIFIED, b"")


def test_compressed_bodies_are_read_within_bounds(monkeypatch: pytest.MonkeyPatch):
    body = b"x" * 10_000
    whole = zstandard.compress(body)
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(body)
    assert batches.decompressed(whole, "zstd") == batches.decompressed(unsized, "zstd") == body
    assert batches.decompressed(body, "") == body
    for broken, encoding, status in (
        (whole[:-4], "zstd", 400),
        (unsized[:-4], "zstd", 400),
        (whole + b"more", "zstd", 400),
        (body, "zstd", 400),
        (body, "gzip", 415),
    ):
        with pytest.raises(RefusalError) as refused:
            batches.decompressed(broken, encoding)
        assert refused.value.status == status
    monkeypatch.setattr(batches, "LARGEST", 5000)
    for bomb in (whole, unsized):
        with pytest.raises(RefusalError, match="at most 5000"):
            batches.decompressed(bomb, "zstd")


def test_json_says_the_same_as_protobuf():
    def tensor(data: list[float], dtype: str) -> dict[str, Any]:
        return {"data": data, "dtype": dtype, "shape": [len(data)]}

    inputs = {"target_tokens": tensor([2, 3, 4], "int64"), "weights": tensor([0.0, 0.5, 1.0], "float32")}
    datum = {"model_input": {"chunks": [{"type": "encoded_text", "tokens": TOKENS}]}, "loss_fn_inputs": inputs}
    asked = {"data": [datum], "loss_fn": "cross_entropy", "loss_fn_config": None}
    body = orjson.dumps({"forward_backward_input": asked, "model_id": "m", "seq_id": 3})
    batch = batches.of_json(body, forward_only=False)
    assert isinstance(batch, Batch)
    assert (batch.model_id, batch.seq_id) == ("m", 3)
    found = datums_of(batch.rows(None), loss_of(batch.loss, batch.settings))
    assert found == read(sent({"target_tokens": [2, 3, 4], "weights": [0.0, 0.5, 1.0]}))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b'{"model_id":"m","forward_backward_input":{"data":1,"loss_fn":"ppo"}}',
        b'{"model_id":"m","forward_backward_input":{"data":[1],"loss_fn":"ppo"}}',
    ],
)
def test_json_that_is_no_request_is_refused(body: bytes):
    with pytest.raises(RefusalError, match="no forward_backward request"):
        batches.of_json(body, forward_only=False)


@pytest.mark.parametrize(
    "datum",
    [
        {},
        {"model_input": {"chunks": [{"type": "dmel"}]}, "loss_fn_inputs": {}},
        {"model_input": {"chunks": [{"type": "image", "data": "!"}]}, "loss_fn_inputs": {}},
        {"model_input": {"chunks": [{"tokens": ["a"]}]}, "loss_fn_inputs": {}},
        {"model_input": {"chunks": [{"tokens": [-1]}]}, "loss_fn_inputs": {}},
        {"model_input": {"chunks": []}, "loss_fn_inputs": {"x": {"data": ["a"], "dtype": "int64"}}},
        {"model_input": {"chunks": []}, "loss_fn_inputs": {"x": {"data": [2**63], "dtype": "int64"}}},
    ],
)
def test_json_that_is_no_datum_is_refused_by_its_place(datum: object):
    asked = {"data": [datum], "loss_fn": "ppo"}
    batch = batches.of_json(orjson.dumps({"forward_backward_input": asked, "model_id": "m"}), forward_only=False)
    with pytest.raises(DataError, match="datum 0"):
        batch.rows(None)


@pytest.mark.parametrize("shape", [[2**62, 0], [0, 2**62], [2**31, 2**31, 0], [2**23, 2**23, 2**23, 0]])
@pytest.mark.parametrize("sparse", [False, True])
def test_a_shape_without_elements_that_no_array_can_have_is_the_clients_error(shape: list[int], sparse: bool):
    tensor = wire.Tensor(dtype=1, shape=shape)
    if sparse:
        tensor.sparse_csr.crow_indices = bytes(8)
    else:
        tensor.dense = b""
    with pytest.raises(DataError, match=r"x (has shape|is sparse)"):
        of_tensor(tensor, "x")


@pytest.mark.parametrize("key", ["seq_id", "model_id"])
def test_a_batch_in_json_whose_fields_are_of_another_kind_is_refused_by_name(key: str):
    body = {"model_id": "m", "seq_id": 1, "forward_input": {"data": [], "loss_fn": "cross_entropy"}, key: ["x"]}
    with pytest.raises(RefusalError, match=key):
        batches.of_json(orjson.dumps(body), forward_only=True)
