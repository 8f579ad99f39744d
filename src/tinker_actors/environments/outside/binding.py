"""What a harness may say of how its model is sampled, and what the seat's own parameters say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, TypeAlias

from tinker_actors.environments.openai.asked import Asked
from tinker_actors.environments.openai.errors import ApiError, unsupported
from tinker_actors.sampling.requests import SamplingParams

Difference: TypeAlias = Literal["refuse", "override", "honour"]
"""What becomes of a temperature or top-p that a harness asks for and that isn't the seat's: the request is refused, the
seat's is taken in its place, or (in seats that nobody learns from) the harness gets what it asked for."""

_CHANGES = {
    "top_k": -1,
    "min_p": 0,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "repetition_penalty": 1,
    "logit_bias": (),
}
"""Fields that change the distribution, and the value at which they don't."""

_NOT_SCORED = "it changes the distribution, which a trainer couldn't score; a seat that nobody learns from can have it"


def bound(own: SamplingParams, asked: Asked, difference: Difference) -> SamplingParams:
    """How a call is sampled.

    Args:
        own: The seat's parameters.
        asked: The call.
        difference: What becomes of a temperature or top-p that isn't the seat's.

    Raises:
        ApiError: It is refused.
    """
    if asked.n != 1:
        raise unsupported("n", asked.n, "of several answers one alone could be gone on from in the episode")
    changes = {**_distribution(own, asked, difference), **_further(own, asked, difference)}
    most = own.max_tokens if asked.max_tokens is None else min(own.max_tokens, asked.max_tokens)
    stop = tuple(dict.fromkeys((*own.stop, *asked.stop)))
    return replace(own, max_tokens=most, stop=stop, logprobs=asked.top_logprobs, **changes)


def _distribution(own: SamplingParams, asked: Asked, difference: Difference) -> dict[str, Any]:
    """The temperature and top-p that aren't the seat's own."""
    changes: dict[str, Any] = {}
    for name in ("temperature", "top_p"):
        wanted, binding = getattr(asked, name), getattr(own, name)
        if wanted is None or wanted == binding or difference == "override":
            continue
        if difference == "refuse":
            raise ApiError(
                f"{name} is {wanted:g}, but this seat is sampled at {binding:g}, at which a trainer scores its tokens; "
                f'leave {name} out, give {binding:g}, or let the seat have difference = "override"',
                param=name,
                code="unsupported_value",
            )
        if name == "top_p" and wanted == 0:
            raise ApiError("top_p is 0; a number above 0 is needed", param=name)
        changes[name] = wanted
    return changes


def _further(own: SamplingParams, asked: Asked, difference: Difference) -> dict[str, Any]:
    """What no trainer can score: for seats that nobody learns from."""
    changes: dict[str, Any] = {}
    for name, off in _CHANGES.items():
        wanted = getattr(asked, name)
        if wanted in (None, off, getattr(own, name)):
            continue
        if difference != "honour":
            raise unsupported(name, wanted, _NOT_SCORED)
        changes[name] = wanted
    if asked.constrained_by is not None and difference != "honour":
        raise unsupported(asked.constrained_by, asked.schema or list(asked.must_call), _NOT_SCORED)
    if asked.ignore_eos:
        raise unsupported("ignore_eos", True, "an answer ends where the seat's own ends are")
    if asked.prompt_logprobs is not None:
        raise unsupported("prompt_logprobs", 0, "a seat is sampled and nothing else")
    return changes
