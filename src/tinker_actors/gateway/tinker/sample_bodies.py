"""A client's request for samples, and what it is for our samplers."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from tinker_actors.data import ImageChunk
from tinker_actors.gateway.refusals import RefusalError
from tinker_actors.gateway.tinker.prompts import Prompt
from tinker_actors.gateway.tinker.shared import Body, Large, Small
from tinker_actors.sampling import InvalidRequestError, PromptScoring, SamplingParams, SamplingRequest

UNLIMITED = 2**31 - 1
"""Tokens where a client sets no limit: the context's end is one."""

_WIRE_NAMES: Mapping[str, str] = {
    "scoring.last": "prompt_logprobs_last_n",
    "scoring.tops": "topk_prompt_logprobs",
    "scoring.draws": "prompt_alt_tokens_k",
    "scoring.candidates": "target_prompt_logprobs",
    "logprobs": "topk_sample_logprobs",
}


class Params(Body):
    """How to sample."""

    max_tokens: Small | None = None
    seed: int | None = None
    stop: str | list[str] | list[Small] | None = None
    temperature: float = 1.0
    top_k: Small = -1
    top_p: float = 1.0

    @property
    def stops(self) -> tuple[str | int, ...]:
        """What ends a sample beside the model's own stop tokens."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class Ids(Body):
    """A matrix of token ids, dense or in compressed sparse rows; -1 stands for nothing."""

    data: list[Small]
    dtype: Literal["int64"] = "int64"
    shape: list[Small] | None = None
    sparse_crow_indices: list[Small] | None = None
    sparse_col_indices: list[Small] | None = None

    def rows(self, places: int) -> list[list[int]]:
        """The ids of each place, with those that stand for nothing.

        Raises:
            RefusalError: It is no matrix with a row for each place.
        """
        name, shape = "target_prompt_logprobs", self.shape or []
        if len(shape) != 2 or shape[0] != places or shape[1] < 0:
            raise _invalid(
                f"{name}.shape is {self.shape}; [{places}, K] is needed, a row for each token after the first"
            )
        if self.sparse_crow_indices is None:
            if len(self.data) != shape[0] * shape[1]:
                raise _invalid(f"{name}.data has {len(self.data)} ids; its shape {shape} needs {shape[0] * shape[1]}")
            return [self.data[row * shape[1] : (row + 1) * shape[1]] for row in range(places)]
        starts = self.sparse_crow_indices
        if len(starts) != places + 1 or starts[0] != 0 or starts[-1] != len(self.data) or starts != sorted(starts):
            raise _invalid(
                f"{name}.sparse_crow_indices are no {places + 1} ascending numbers from 0 to {len(self.data)}"
            )
        if len(self.sparse_col_indices or ()) != len(self.data):
            raise _invalid(f"{name}.sparse_col_indices are not as many as its data, {len(self.data)}")
        return [self.data[start:end] for start, end in itertools.pairwise(starts)]


class Asample(Body):
    """A request for samples."""

    sampling_session_id: str
    seq_id: Large
    prompt: Prompt
    sampling_params: Params = Params()
    num_samples: Annotated[int, Field(ge=1, le=100_000)] = 1
    prompt_logprobs: bool | None = None
    topk_prompt_logprobs: Small = 0
    topk_sample_logprobs: Small = 0
    target_prompt_logprobs: Ids | None = None
    prompt_alt_tokens_k: Small = 0
    prompt_logprobs_last_n: Small | None = None
    base_model: str | None = None
    model_path: str | None = None

    def request(self, tokens: tuple[int, ...], images: tuple[ImageChunk, ...], *, job: str) -> SamplingRequest:
        """The request for a sampler; its snapshot is still to be named.

        Args:
            tokens: The prompt, read.
            images: Its images.
            job: Whose share of the sampler it takes.

        Raises:
            RefusalError: A field can't be served; named as clients name it.
        """
        if self.base_model is not None or self.model_path is not None:
            name = "model_path" if self.base_model is None else "base_model"
            raise _invalid(f"{name} is set; what is sampled from is said once, when its sampling session is made")
        if self.prompt_logprobs_last_n is not None and not self.prompt_logprobs:
            raise _invalid("prompt_logprobs_last_n is set and prompt_logprobs is not; it says how many of those")
        params, ids = self.sampling_params, self.target_prompt_logprobs
        rows = ids.rows(len(tokens) - 1) if ids is not None else []
        try:
            return SamplingRequest(
                prompt=tokens,
                snapshot="unknown",
                params=SamplingParams(
                    max_tokens=UNLIMITED if params.max_tokens is None else params.max_tokens,
                    temperature=params.temperature,
                    top_k=params.top_k,
                    top_p=params.top_p,
                    seed=params.seed,
                    stop=params.stops,
                    default_stops=params.stop != [],
                    logprobs=self.topk_sample_logprobs,
                ),
                num_samples=self.num_samples,
                images=images,
                prompt_logprobs=bool(self.prompt_logprobs),
                scoring=PromptScoring(
                    last=self.prompt_logprobs_last_n,
                    tops=self.topk_prompt_logprobs,
                    candidates=tuple(tuple(token for token in row if token != -1) for row in rows),
                    draws=self.prompt_alt_tokens_k,
                ),
                job=job,
            )
        except InvalidRequestError as error:
            raise _invalid(_in_wire_names(str(error))) from error


def _in_wire_names(text: str) -> str:
    for name, wire in _WIRE_NAMES.items():
        if text.startswith(name):
            return wire + text.removeprefix(name)
    return text


def _invalid(detail: str) -> RefusalError:
    return RefusalError(400, detail, code="invalid_request")
