"""`SamplingClient`: what samples from one snapshot, or from a base model."""

from __future__ import annotations

from collections.abc import Sequence

from tinker_actors.data import ModelInput
from tinker_actors.models.tokenizer import Tokenizer
from tinker_actors.sampling.requests import SamplingParams, SamplingReply
from tinker_actors.services.contract import Samples
from tinker_actors.services.futures import ApiFuture, LoopThread


class SamplingClient:
    """Samples from one snapshot, or from a base model; made by a `ServiceClient` or a `TrainingClient`."""

    def __init__(self, source: Samples, thread: LoopThread) -> None:
        self._source, self._thread = source, thread

    @property
    def model_path(self) -> str | None:
        """The snapshot's path; None for the base model, and for a snapshot without a name."""
        return self._source.path

    def get_base_model(self) -> str:
        """Name of the base model."""
        return self._source.base_model

    def sample(
        self,
        prompt: ModelInput | Sequence[int],
        num_samples: int = 1,
        sampling_params: SamplingParams | None = None,
        include_prompt_logprobs: bool = False,
    ) -> ApiFuture[SamplingReply]:
        """Sample.

        Args:
            prompt: Token ids, or a `ModelInput` with images in it.
            num_samples: How many independent samples.
            sampling_params: How to sample.
            include_prompt_logprobs: Whether the reply has the log-prob of each prompt token after the first.

        Returns:
            The reply, whose log-probs are single-precision numbers, as the protocol sends them.

        Raises:
            InvalidRequestError: The service can't sample so.
            SamplingError: It failed.
        """
        given = prompt if isinstance(prompt, ModelInput) else ModelInput.of(tuple(prompt))
        params = SamplingParams() if sampling_params is None else sampling_params
        return self._thread.call(
            self._source.sample(given, params, num_samples=num_samples, prompt_logprobs=include_prompt_logprobs)
        )

    async def sample_async(
        self,
        prompt: ModelInput | Sequence[int],
        num_samples: int = 1,
        sampling_params: SamplingParams | None = None,
        include_prompt_logprobs: bool = False,
    ) -> SamplingReply:
        """As `sample`."""
        return await self.sample(prompt, num_samples, sampling_params, include_prompt_logprobs)

    def compute_logprobs(self, prompt: ModelInput | Sequence[int]) -> ApiFuture[list[float | None]]:
        """The log-prob of each token at temperature 1, given those before it; None for the first."""

        async def compute() -> list[float | None]:
            given = prompt if isinstance(prompt, ModelInput) else ModelInput.of(tuple(prompt))
            params = SamplingParams(max_tokens=1)
            reply = await self._source.sample(given, params, num_samples=1, prompt_logprobs=True)
            return [None, *reply.prompt_logprobs]

        return self._thread.call(compute())

    async def compute_logprobs_async(self, prompt: ModelInput | Sequence[int]) -> list[float | None]:
        """As `compute_logprobs`."""
        return await self.compute_logprobs(prompt)

    def get_tokenizer(self) -> Tokenizer:
        """The base model's tokenizer."""
        return self._thread.call(self._source.tokenizer()).result()
