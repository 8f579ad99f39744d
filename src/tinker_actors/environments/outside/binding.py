"""What a harness may say of how its model is sampled, and what the seat's own parameters say."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, TypeAlias

from tinker_actors.environments.outside.asked import ApiError, Asked
from tinker_actors.sampling.requests import SamplingParams

Difference: TypeAlias = Literal["refuse", "override", "honour"]
"""What becomes of a temperature or top-p that a harness asks for and that isn't the seat's: the request is refused, the
seat's is taken in its place, or (in seats that nobody learns from) the harness gets what it asked for."""


def bound(own: SamplingParams, asked: Asked, difference: Difference) -> SamplingParams:
    """How a call is sampled.

    Args:
        own: The seat's parameters.
        asked: The call.
        difference: What becomes of a temperature or top-p that isn't the seat's.

    Raises:
        ApiError: It is refused.
    """
    changes: dict[str, float] = {}
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
    most = own.max_tokens if asked.max_tokens is None else min(own.max_tokens, asked.max_tokens)
    stop = tuple(dict.fromkeys((*own.stop, *asked.stop)))
    return replace(own, max_tokens=most, stop=stop, logprobs=asked.top_logprobs, **changes)
