"""Sampling in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tinker_actors.data import ModelInput
from tinker_actors.gateway.caller import LOCAL
from tinker_actors.gateway.gateway import Gateway
from tinker_actors.models.catalogue import load_tokenizer
from tinker_actors.models.tokenizer import Tokenizer
from tinker_actors.sampling.requests import Sample, SamplingParams, SamplingReply, SamplingRequest


class LocalSamples:
    """See `Samples`.

    Args:
        gateway: Has the samplers.
        base_model: Name of the base model.
        path: The snapshot's path, if it has a name.
        handle: The snapshot; None for the base model.
    """

    def __init__(self, gateway: Gateway, base_model: str, *, path: str | None, handle: str | None) -> None:
        self._gateway, self._handle = gateway, handle
        self.base_model, self.path = base_model, path

    async def sample(
        self, prompt: ModelInput, params: SamplingParams, *, num_samples: int, prompt_logprobs: bool
    ) -> SamplingReply:
        """Sample."""
        sampler = self._gateway.runtime.engines_of(self.base_model).sampler
        async with self._gateway.serving.loaded(self.base_model, self._handle) as snapshot:
            reply = await sampler.sample(
                SamplingRequest(
                    prompt=prompt.tokens,
                    images=prompt.images,
                    snapshot=snapshot,
                    params=params,
                    num_samples=num_samples,
                    prompt_logprobs=prompt_logprobs,
                    job=LOCAL.tenant,
                )
            )
        return replace(
            reply,
            samples=tuple(_single(sample) for sample in reply.samples),
            prompt_logprobs=single(reply.prompt_logprobs),
            snapshot=self.path or self.base_model,
        )

    async def tokenizer(self) -> Tokenizer:
        """The base model's tokenizer."""
        served = self._gateway.runtime.engines_of(self.base_model).served
        return await asyncio.to_thread(load_tokenizer, served.catalogue_name)


def single(values: Sequence[float]) -> tuple[float, ...]:
    """Numbers in single precision, as the protocol sends them: a program gets the same ones wherever it runs."""
    return tuple(np.asarray(values, dtype=np.float32).astype(np.float64).tolist())


def _single(sample: Sample) -> Sample:
    tops = tuple(
        tuple(zip((token for token, _ in top), single([value for _, value in top]), strict=True))
        for top in sample.top_logprobs
    )
    return replace(sample, logprobs=single(sample.logprobs), top_logprobs=tops)
