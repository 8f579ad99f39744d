"""What a pass over a batch found, as the Tinker API sends it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tinker.proto import tinker_public_pb2 as wire

from tinker_actors.gateway.futures import Answer
from tinker_actors.gateway.tinker.batches import Row
from tinker_actors.gateway.tinker.losses import CLOSED, Loss
from tinker_actors.gateway.tinker.metric_names import named_metrics
from tinker_actors.training.contract import ForwardBackwardResult

OUTPUT_TYPE = "ArrayRecord"


_LITTLE = 4096
"""Log-probs that are written in less time than a thread takes to be woken."""


async def written(result: ForwardBackwardResult, rows: Sequence[Row], loss: Loss) -> Answer:
    """As `answer_of`; a large answer is written beside the loop, for which others wait."""
    if sum(map(len, result.logprobs)) <= _LITTLE:
        return answer_of(result, rows, loss)
    return await asyncio.to_thread(answer_of, result, rows, loss)


def answer_of(result: ForwardBackwardResult, rows: Sequence[Row], loss: Loss) -> Answer:
    """The answer to a `forward_backward`, in protobuf, and as JSON for libraries that don't read that.

    Args:
        result: What was found.
        rows: The request's datums, of whose targets the log-probs take the shapes.
        loss: What was asked for.
    """
    logprobs = [_shaped(found, row) for found, row in zip(result.logprobs, rows, strict=True)]
    metrics = named_metrics(result.metrics)
    if loss.asked == CLOSED:
        metrics[f"surrogate_{loss.config.name}:max"] = 1.0
    content = _message(logprobs, metrics).SerializeToString()
    return Answer(content=content, media_type="application/x-protobuf", plain=partial(_plain, content))


def _shaped(found: Sequence[float], row: Row) -> NDArray[np.float32]:
    """Log-probs in the shape of the targets; of candidates that stand more than once, each has its own."""
    logprobs = np.asarray(found, dtype=np.float32)
    targets = row.inputs["target_tokens"]
    if targets.ndim == 1:
        return logprobs
    written = np.zeros(targets.shape, dtype=np.float32)
    start = 0
    for index, candidates in enumerate(targets):
        distinct, places = np.unique(candidates, return_inverse=True)
        written[index] = logprobs[start : start + len(distinct)][places]
        start += len(distinct)
    return written


def _message(logprobs: Sequence[NDArray[np.float32]], metrics: Mapping[str, float]) -> wire.ForwardBackwardOutput:
    message = wire.ForwardBackwardOutput(loss_fn_output_type=OUTPUT_TYPE, metrics=metrics)
    for trailing, group in groupby(logprobs, key=lambda row: row.shape[1:]):  # a record's rows differ in length alone
        rows = list(group)
        record = message.loss_fn_outputs.add(type_tag=OUTPUT_TYPE, num_datums=len(rows))
        record.fields["logprobs"].CopyFrom(
            wire.BatchedTensor(
                data=b"".join(row.tobytes() for row in rows),
                offsets=np.cumsum([0, *(row.nbytes for row in rows)], dtype="<i8").tobytes(),
                dtype=wire.DTYPE_FLOAT32,
                trailing_shape=trailing,
            )
        )
    return message


def _plain(content: bytes) -> dict[str, Any]:
    message = wire.ForwardBackwardOutput.FromString(content)
    outputs: list[dict[str, Any]] = []
    for record in message.loss_fn_outputs:
        tensor = record.fields["logprobs"]
        offsets = np.frombuffer(tensor.offsets, "<i8").tolist()
        for start, end in pairwise(offsets):
            row = np.frombuffer(tensor.data[start:end], "<f4").reshape(-1, *tensor.trailing_shape)
            written = {"data": row.reshape(-1).tolist(), "dtype": "float32", "shape": list(row.shape)}
            outputs.append({"logprobs": written})
    return {"loss_fn_output_type": OUTPUT_TYPE, "loss_fn_outputs": outputs, "metrics": dict(message.metrics)}
