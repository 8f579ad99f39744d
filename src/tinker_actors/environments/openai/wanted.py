"""The fields that chat completions, completions and responses share."""

from __future__ import annotations

from typing import Any

from tinker_actors.environments.openai.body import Body

MOST_ANSWERS = 128
MOST_TOPS = 20

WITHOUT_EFFECT = frozenset(
    {
        "metadata",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "stream",
        "stream_options",
        "user",
    }
)
"""Fields that change nothing of what the model says."""

SAMPLING = frozenset(
    {
        "frequency_penalty",
        "ignore_eos",
        "logit_bias",
        "min_p",
        "model",
        "n",
        "presence_penalty",
        "prompt_logprobs",
        "repetition_penalty",
        "return_token_ids",
        "seed",
        "stop",
        "stop_token_ids",
        "temperature",
        "top_k",
        "top_p",
    }
)
"""Fields that `sampling_fields` reads."""


def sampling_fields(body: Body) -> dict[str, Any]:
    """The fields of `Wanted` that stand under the same names in chat completions and completions.

    Raises:
        ApiError: One can't be read, or can't be served.
    """
    seed = body.get("seed", int, needed="an integer")
    return {
        "model": body.get("model", str, needed="a model's name") or "",
        "n": body.whole("n", least=1, most=MOST_ANSWERS) or 1,
        "temperature": body.number("temperature", 0, 2),
        "top_p": body.number("top_p", 0, 1),
        "top_k": body.whole("top_k", least=-1),
        "min_p": body.number("min_p", 0, 1),
        "presence_penalty": body.number("presence_penalty", -2, 2),
        "frequency_penalty": body.number("frequency_penalty", -2, 2),
        "repetition_penalty": body.number("repetition_penalty", 0.01, 100),
        "logit_bias": body.biases(),
        "stop": body.stops(),
        "ignore_eos": bool(body.flag("ignore_eos")),
        "seed": None if seed is None else seed % 2**64,
        "prompt_logprobs": body.whole("prompt_logprobs", least=0, most=MOST_TOPS),
        "token_ids": bool(body.flag("return_token_ids")),
    }
