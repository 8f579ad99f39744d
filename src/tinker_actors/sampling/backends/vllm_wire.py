"""Requests and answers as vLLM's completions API has them: token ids in, token ids and log-probs out.

Fields: https://docs.vllm.ai/en/latest/serving/openai_compatible_server/ (completions API, extra parameters).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tinker_actors.errors import SamplingError
from tinker_actors.sampling.requests import InvalidRequestError, SamplingRequest

_TOKEN = "token_id:"
_LEAST = -9999.0
"""What vLLM writes for the log-prob of a token that can't be drawn."""


def check(request: SamplingRequest, *, max_logprobs: int) -> None:
    """Refuse what a vLLM server doesn't serve as asked.

    Raises:
        InvalidRequestError: Names the field, the value and what would be right.
    """
    params = request.params
    if request.images:
        raise InvalidRequestError(f"images has {len(request.images)}; a vLLM server takes token ids alone")
    if params.grammar is not None:
        raise InvalidRequestError("params.grammar is given; a vLLM server takes none of these, None is needed")
    if params.logprobs > max_logprobs:
        raise InvalidRequestError(
            f"params.logprobs is {params.logprobs}; at most {max_logprobs}, the server's max_logprobs, is needed"
        )
    if not (params.temperature == 0 or 0.01 <= params.temperature <= 2):
        raise InvalidRequestError(
            f"params.temperature is {params.temperature}; vLLM takes 0, and 0.01 to 2, and would change it"
        )
    for name in ("presence_penalty", "frequency_penalty"):
        if not -2 <= getattr(params, name) <= 2:
            raise InvalidRequestError(f"params.{name} is {getattr(params, name)}; a number from -2 to 2 is needed")
    if any(not -100 <= bias <= 100 for _, bias in params.logit_bias):
        raise InvalidRequestError("params.logit_bias has a number beyond -100 to 100, which vLLM would change")
    if params.logit_bias and params.repetition_penalty != 1:
        raise InvalidRequestError(
            f"params.logit_bias goes with params.repetition_penalty {params.repetition_penalty}; vLLM applies them in "
            "the other order: one or the other is needed"
        )


def body_of(
    request: SamplingRequest, *, model: str, max_tokens: int, stop_ids: Collection[int], stream: bool
) -> dict[str, Any]:
    """The body of a completions request. It has no seed: one can kill the engine when a prompt is computed in parts.

    Args:
        request: What is asked.
        model: The adapter's name at the server.
        max_tokens: Tokens to draw at most.
        stop_ids: Tokens that end a sample; the server's own are left out of account.
        stream: Whether the answer comes token by token.
    """
    params = request.params
    scores = request.prompt_logprobs or bool(request.targets)
    body: dict[str, Any] = {
        "model": model,
        "prompt": [*request.prompt, *request.targets],
        # equally likely or not, a greedy sample is drawn once: vLLM refuses more
        "n": 1 if params.greedy else request.num_samples,
        "max_tokens": 1 if request.targets else max_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": max(0, params.top_k),
        "min_p": params.min_p,
        "repetition_penalty": params.repetition_penalty,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "stop": list(params.stop_strings),
        "stop_token_ids": sorted(stop_ids),
        "ignore_eos": True,  # the stop ids say it all
        "logprobs": params.logprobs,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "add_special_tokens": False,
        "stream": stream,
    }
    if params.logit_bias:
        body["logit_bias"] = {str(token): bias for token, bias in params.logit_bias}
    if scores:
        body["prompt_logprobs"] = 0
    if request.priority:
        body["priority"] = -request.priority  # lower goes first there
    if stream:
        body["stream_options"] = {"include_usage": True}
    return body


@dataclass(slots=True, kw_only=True)
class Choice:
    """One sample as it comes, whole or in parts."""

    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    tops: list[tuple[tuple[int, float], ...]] = field(default_factory=list[tuple[tuple[int, float], ...]])
    finish: str | None = None

    def add(self, part: Mapping[str, Any], count: int) -> int:
        """Take a part of the sample; how many tokens it had.

        Args:
            part: A choice of the answer.
            count: How many of the most likely tokens were asked for.

        Raises:
            SamplingError: It has no token ids or not as many log-probs.
        """
        tokens, logprobs = part.get("token_ids"), part.get("logprobs") or {}
        if tokens is None:
            raise SamplingError("the server gave no token_ids; a vLLM that knows return_token_ids is needed")
        drawn = logprobs.get("token_logprobs") or []
        if len(drawn) != len(tokens):
            raise SamplingError(f"the server gave {len(tokens)} tokens and {len(drawn)} log-probs")
        self.tokens += tokens
        self.logprobs += drawn
        if count:
            self.tops += [_tops(entry or {}, count) for entry in logprobs.get("top_logprobs") or []]
        self.finish = part.get("finish_reason") or self.finish
        return len(tokens)


def prompt_logprobs_of(choice: Mapping[str, Any], prompt: Sequence[int]) -> tuple[float, ...]:
    """Log-probs of a prompt's tokens after the first.

    Raises:
        SamplingError: The server left some out.
    """
    entries = choice.get("prompt_logprobs") or []
    if len(entries) != len(prompt):
        raise SamplingError(f"the server scored {len(entries)} of {len(prompt)} prompt tokens")
    try:
        return tuple(float(entries[place][str(prompt[place])]["logprob"]) for place in range(1, len(prompt)))
    except (KeyError, TypeError) as error:
        raise SamplingError(f"the server's prompt_logprobs lack a token of the prompt: {error!r}") from error


def check_prompt(choice: Mapping[str, Any], prompt: Sequence[int]) -> None:
    """Refuse an answer to another prompt than was asked: nothing may be added to it or cut from it.

    Raises:
        SamplingError: It is another.
    """
    seen = choice.get("prompt_token_ids")
    if seen is not None and list(seen) != list(prompt):
        raise SamplingError(f"the server computed a prompt of {len(seen)} tokens; {len(prompt)} others were sent")


def cached_of(answer: Mapping[str, Any]) -> int:
    """Prompt tokens that the server had computed before, as far as it says."""
    details = (answer.get("usage") or {}).get("prompt_tokens_details") or {}
    return int(details.get("cached_tokens") or 0)


def _tops(entry: Mapping[str, float], count: int) -> tuple[tuple[int, float], ...]:
    found = [(int(name.removeprefix(_TOKEN)), value) for name, value in entry.items() if value > _LEAST]
    return tuple(sorted(found, key=lambda pair: (-pair[1], pair[0]))[:count])
