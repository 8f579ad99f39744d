"""Samples as clients read them: protobuf, and JSON for whoever asks for that."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from tinker.proto import tinker_public_pb2 as wire

from tinker_actors.data import TurnEnd
from tinker_actors.gateway.futures import Answer
from tinker_actors.gateway.tinker.sample_bodies import Asample, Ids
from tinker_actors.sampling import PromptScores, Sample, SamplingReply

_MISSING = -99999.0
"""Log-prob of a place's token that isn't there; its id is 0."""


def sample_answer(asked: Asample, reply: SamplingReply) -> Answer:
    """The answer to a request for samples."""
    content = _message(asked, reply).SerializeToString()
    # written now, as bytes: the reply itself would be thousands of objects to keep
    plain = partial(orjson.loads, orjson.dumps(_plain(asked, reply)))
    return Answer(content=content, media_type="application/x-protobuf", plain=plain)


def _message(asked: Asample, reply: SamplingReply) -> Any:
    message = wire.SampleResponse(prompt_cache_hit_tokens=reply.cached_tokens)
    for sample in reply.samples:
        sequence = message.sequences.add(
            stop_reason=wire.STOP_REASON_STOP if sample.end is TurnEnd.STOP else wire.STOP_REASON_LENGTH,
            tokens=np.array(sample.tokens, np.int32).tobytes(),
            logprobs=np.array(sample.logprobs, np.float32).tobytes(),
        )
        if asked.topk_sample_logprobs:
            _write_tops(sequence.topk_sampled_logprobs, *_tops_of(sample, asked.topk_sample_logprobs))
    if asked.prompt_logprobs:
        message.prompt_logprobs = _prompt_logprobs(reply).tobytes()
    scores = reply.prompt_scores
    if scores is None:
        return message
    if asked.topk_prompt_logprobs:
        _write_tops(message.topk_prompt_logprobs, *_prompt_tops(asked, reply, scores))
    if asked.target_prompt_logprobs is not None:
        _write_targets(message.target_prompt_logprobs, asked.target_prompt_logprobs, scores)
    if asked.prompt_alt_tokens_k:
        drawn = message.prompt_alt_tokens
        _write_dense(drawn.tokens, scores.drawn_tokens.astype(np.int64), wire.DTYPE_INT64)
        _write_dense(drawn.logprobs, scores.drawn_logprobs, wire.DTYPE_FLOAT32)
    return message


def _prompt_logprobs(reply: SamplingReply) -> NDArray[np.float32]:
    """One for each token of the prompt; NaN for the first and for those that were not asked for."""
    logprobs = np.full(reply.prompt_tokens, np.nan, np.float32)
    if reply.prompt_logprobs:
        logprobs[-len(reply.prompt_logprobs) :] = reply.prompt_logprobs
    return logprobs


def _prompt_tops(asked: Asample, reply: SamplingReply, scores: PromptScores) -> tuple[Any, Any]:
    """The most likely tokens of each token of the prompt; nothing for the first and for those not asked for."""
    shape = (reply.prompt_tokens, asked.topk_prompt_logprobs)
    tokens, logprobs = np.zeros(shape, np.int32), np.full(shape, _MISSING, np.float32)
    if rows := len(scores.top_tokens):
        width = scores.top_tokens.shape[1]
        tokens[-rows:, :width], logprobs[-rows:, :width] = scores.top_tokens, scores.top_logprobs
    return tokens, logprobs


def _tops_of(sample: Sample, width: int) -> tuple[Any, Any]:
    shape = (len(sample.tokens), width)
    tokens, logprobs = np.zeros(shape, np.int32), np.full(shape, _MISSING, np.float32)
    for row, tops in enumerate(sample.top_logprobs):
        for column, (token, logprob) in enumerate(tops):
            tokens[row, column], logprobs[row, column] = token, logprob
    return tokens, logprobs


def _write_tops(place: Any, tokens: NDArray[np.int32], logprobs: NDArray[np.float32]) -> None:
    place.token_ids, place.logprobs = tokens.tobytes(), logprobs.tobytes()
    place.length, place.k = tokens.shape


def _write_targets(place: Any, asked: Ids, scores: PromptScores) -> None:
    """The log-probs in the layout of the ids; 0 where nothing was asked for."""
    ids = np.array(asked.data, np.int64)
    values = np.zeros(ids.shape, np.float32)
    values[ids != -1] = scores.candidate_logprobs
    place.dtype = wire.DTYPE_FLOAT32
    place.shape.extend(asked.shape or [])
    if asked.sparse_crow_indices is None:
        place.dense = values.tobytes()
        return
    place.sparse_csr.values = values.tobytes()
    place.sparse_csr.crow_indices = np.array(asked.sparse_crow_indices, np.int64).tobytes()
    place.sparse_csr.col_indices = np.array(asked.sparse_col_indices or [], np.int64).tobytes()


def _write_dense(place: Any, values: NDArray[Any], dtype: int) -> None:
    place.dtype, place.dense = dtype, values.tobytes()
    place.shape.extend(values.shape)


def _plain(asked: Asample, reply: SamplingReply) -> dict[str, Any]:
    """The same as JSON data, with which clients before protobuf began."""
    found: dict[str, Any] = {
        "type": "sample",
        "sequences": [
            {
                "stop_reason": "stop" if sample.end is TurnEnd.STOP else "length",
                "tokens": sample.tokens,
                "logprobs": sample.logprobs,
            }
            for sample in reply.samples
        ],
        "prompt_cache_hit_tokens": reply.cached_tokens,
    }
    if asked.prompt_logprobs:
        missing = reply.prompt_tokens - len(reply.prompt_logprobs)
        found["prompt_logprobs"] = [*[None] * missing, *reply.prompt_logprobs]
    if asked.topk_prompt_logprobs and reply.prompt_scores is not None:
        scores = reply.prompt_scores
        rows = [
            list(zip(tokens, logprobs, strict=True))
            for tokens, logprobs in zip(scores.top_tokens.tolist(), scores.top_logprobs.tolist(), strict=True)
        ]
        found["topk_prompt_logprobs"] = [*[None] * (reply.prompt_tokens - len(rows)), *rows]
    return found
