"""Batches as the Tinker API sends them, in protobuf or JSON, before they are checked against a loss."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import zstandard
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from pydantic import ValidationError
from tinker.proto import tinker_public_pb2 as wire

from tinker_actors.data import Image, ImageChunk, ModelInput, TextChunk
from tinker_actors.data.inputs import Chunk, concatenate
from tinker_actors.errors import DataError
from tinker_actors.gateway.refusals import RefusalError
from tinker_actors.gateway.tinker import tensors
from tinker_actors.gateway.tinker.shared import Body
from tinker_actors.models.images import ImageRule

LARGEST = 2**27
"""Bytes of a body once it is decompressed."""

MOST_DATUMS = 2**16
"""Of a batch: a datum of a few bytes becomes some thousand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One datum as it was sent.

    Attributes:
        model_input: What the model reads.
        inputs: The loss's inputs by name: fp32 or int64.
    """

    model_input: ModelInput
    inputs: Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What a `forward_backward` asks for.

    Attributes:
        model_id: Of which model.
        seq_id: Its place among the model's commands; None for the next.
        loss: The loss's name.
        settings: The loss's settings.
        forward_only: Whether no gradients are wanted.
        size: Bytes of the body.
        rows: Reads the datums, which takes its time; given how the base model counts images, if it reads any.
    """

    model_id: str
    seq_id: int | None
    loss: str
    settings: Mapping[str, float | str]
    forward_only: bool
    size: int
    rows: Callable[[ImageRule | None], list[Row]]


class JsonInput(Body):
    """A batch in JSON; its datums are checked when they are read."""

    data: list[dict[str, Any]]
    loss_fn: str
    loss_fn_config: dict[str, float | str] | None = None


class JsonRequest(Body):
    """A `forward_backward` or `forward` in JSON."""

    model_id: str
    seq_id: int | None = None
    forward_input: JsonInput | None = None
    forward_backward_input: JsonInput | None = None


def decompressed(body: bytes, encoding: str) -> bytes:
    """A request's body as it was before it was compressed.

    Raises:
        RefusalError: The encoding isn't known, the body isn't of it, or it would be too large.
    """
    if encoding in ("", "identity"):
        return body
    if encoding != "zstd":
        raise RefusalError(415, f"Content-Encoding is {encoding!r}; zstd or none is needed", code="unknown_encoding")
    try:
        size = zstandard.frame_content_size(body)
        if size <= LARGEST:
            # of a frame that doesn't say its size no more than the limit is made; then or if it is torn, it is an error
            decompressor = zstandard.ZstdDecompressor(max_window_size=LARGEST)
            return decompressor.decompress(body, max_output_size=LARGEST, allow_extra_data=False)
    except (zstandard.ZstdError, ValueError) as error:  # the second for what follows after the frame
        detail = f"the body is not zstd of at most {LARGEST} bytes: {error}"
        raise RefusalError(400, detail, code="invalid_request") from error
    raise RefusalError(413, f"the body decompresses to {size} bytes; at most {LARGEST} are read", code="too_large")


def of_protobuf(body: bytes) -> Batch:
    """Read a `ForwardBackwardRequest`.

    Raises:
        RefusalError: The body is none, or has too many datums.
    """
    message = wire.ForwardBackwardRequest()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise RefusalError(400, f"the body is no ForwardBackwardRequest: {error}", code="invalid_request") from error
    _check_datums(len(message.data))
    settings: dict[str, float | str] = dict(message.loss_fn_config)
    for name, value in message.loss_fn_config_v2.items():
        settings[name] = value.text if value.WhichOneof("value") == "text" else value.number
    return Batch(
        model_id=message.model_id,
        seq_id=message.seq_id,
        loss=message.loss_fn,
        settings=settings,
        forward_only=message.forward_only,
        size=len(body),
        rows=lambda rule: [_of_message(index, datum, rule) for index, datum in enumerate(message.data)],
    )


def of_json(body: bytes, *, forward_only: bool) -> Batch:
    """Read the JSON that libraries before 0.19 send.

    Raises:
        RefusalError: The body is none, or has too many datums.
    """
    try:
        found = JsonRequest.model_validate_json(body)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:5])
        raise RefusalError(400, f"the body is no forward_backward request: {wrong}", code="invalid_request") from error
    asked = (found.forward_input if forward_only else None) or found.forward_backward_input
    if asked is None:
        raise RefusalError(400, "forward_backward_input is missing; the batch is needed", code="invalid_request")
    data = asked.data
    _check_datums(len(data))
    return Batch(
        model_id=found.model_id,
        seq_id=found.seq_id,
        loss=asked.loss_fn,
        settings=asked.loss_fn_config or {},
        forward_only=forward_only,
        size=len(body),
        rows=lambda rule: [_of_mapping(index, datum, rule) for index, datum in enumerate(data)],
    )


def _check_datums(count: int) -> None:
    if count > MOST_DATUMS:
        raise RefusalError(
            413, f"the batch has {count} datums; at most {MOST_DATUMS} are taken at once", code="too_large"
        )


def _of_message(index: int, datum: wire.Datum, rule: ImageRule | None) -> Row:
    def chunks() -> Iterator[Chunk]:
        for chunk in datum.model_input:
            match chunk.WhichOneof("chunk"):
                case "encoded_text":
                    yield TextChunk(tokens=tuple(np.frombuffer(chunk.encoded_text.tokens, "<i4").tolist()))
                case "image":
                    image = chunk.image
                    if image.HasField("override_dimensions"):
                        raise DataError("override_dimensions of an image is set; images are read at their own size")
                    expected = image.expected_tokens if image.HasField("expected_tokens") else None
                    yield image_chunk(image.data, image.format, expected, rule)
                case other:
                    raise DataError(f"a chunk is {other}; encoded_text or image is needed")

    where = f"datum {index}"
    inputs = {name: tensors.of_protobuf(tensor, f"{where}: {name}") for name, tensor in datum.loss_fn_inputs.items()}
    return _row(where, chunks, inputs)


def _of_mapping(index: int, datum: Mapping[str, Any], rule: ImageRule | None) -> Row:
    def chunks() -> Iterator[Chunk]:
        for chunk in datum["model_input"]["chunks"]:
            match chunk.get("type", "encoded_text"):
                case "encoded_text":
                    yield TextChunk(tokens=tuple(int(token) for token in chunk["tokens"]))
                case "image":
                    data = base64.b64decode(chunk["data"], validate=True)
                    yield image_chunk(data, str(chunk.get("format", "")), chunk.get("expected_tokens"), rule)
                case other:
                    raise DataError(f"a chunk is {other}; encoded_text or image is needed")

    where = f"datum {index}"
    try:
        inputs = {
            str(name): tensors.of_json(tensor, f"{where}: {name}") for name, tensor in datum["loss_fn_inputs"].items()
        }
        return _row(where, chunks, inputs)
    except (KeyError, TypeError, AttributeError, ValueError, binascii.Error) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{where} is no datum: {type(error).__name__} {error}") from error


def _row(where: str, chunks: Callable[[], Iterator[Chunk]], inputs: Mapping[str, NDArray[Any]]) -> Row:
    try:
        return Row(model_input=concatenate([ModelInput(chunks=(chunk,)) for chunk in chunks()]), inputs=inputs)
    except ValueError as error:  # an error of this package's, or numpy's over bytes that are no tokens
        raise DataError(f"{where}: model_input: {error}") from error


def image_chunk(data: bytes, format: str, expected: int | None, rule: ImageRule | None) -> ImageChunk:
    """An image as the base model reads it.

    Args:
        data: The encoded image.
        format: What its sender calls its encoding; nothing if that wasn't said.
        expected: How many positions its sender takes it for; None if that wasn't said.
        rule: How the base model counts images; None if it reads none.

    Raises:
        DataError: It can't be read, is of another format, or takes another number of positions.
    """
    if rule is None:
        raise DataError("there is an image; the base model reads none")
    image = Image.of(data)
    if format not in ("", image.format):
        raise DataError(f"format of an image is {format!r}, but its data is {image.format!r}")
    chunk = rule.chunk(image)
    if expected is not None and expected != len(chunk):
        raise DataError(f"expected_tokens of an image is {expected}, but the base model reads it as {len(chunk)}")
    return chunk
