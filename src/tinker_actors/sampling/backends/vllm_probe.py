"""Whether a server that somebody else started gives the log-probs that training needs."""

from __future__ import annotations

from tinker_actors.sampling.backends.vllm_client import VllmClient
from tinker_actors.sampling.backends.vllm_wire import Choice
from tinker_actors.sampling.requests import InvalidRequestError


async def check_log_probs(client: VllmClient, base: str) -> None:
    """Refuse a server whose log-probs aren't those of the distribution that tokens are drawn from.

    By default vLLM gives those at temperature 1. The gap between the two most likely tokens tells: at temperature 0.5
    it is twice as large. The base model is asked for it, which no request is served by.

    Raises:
        InvalidRequestError: Says how the server is to be started.
    """
    gaps: list[float] = []
    for temperature in (1.0, 0.5):
        body = {
            "model": base,
            "prompt": [1],
            "max_tokens": 1,
            "temperature": temperature,
            "top_p": 1.0,
            "top_k": 0,
            "ignore_eos": True,
            "logprobs": 2,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }
        choice = Choice()
        choice.add((await client.complete(body))["choices"][0], 2)
        (first, second) = choice.tops[0]
        gaps.append(first[1] - second[1])
    # bf16 rounds what it is compared by
    if abs(gaps[1] - 2 * gaps[0]) > abs(gaps[1] - gaps[0]):
        raise InvalidRequestError(
            f"its log-probs don't follow the temperature (gaps {gaps[0]:.4f} and {gaps[1]:.4f} at 1 and 0.5); "
            "start it with --logprobs-mode processed_logprobs"
        )
