"""The sampler actor: many snapshots over one base model, sampled in batches. See `docs/sampling.md`.

Requests and replies import without torch; the rest resolves when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinker_actors.sampling.requests import (
    InvalidRequestError,
    Sample,
    SamplerStats,
    SamplingParams,
    SamplingReply,
    SamplingRequest,
)

if TYPE_CHECKING:
    from tinker_actors.sampling.sampler import Sampler

__all__ = [
    "InvalidRequestError",
    "Sample",
    "Sampler",
    "SamplerStats",
    "SamplingParams",
    "SamplingReply",
    "SamplingRequest",
]


def __getattr__(name: str) -> object:
    if name == "Sampler":
        from tinker_actors.sampling.sampler import Sampler

        return Sampler
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
