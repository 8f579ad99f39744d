"""The sampler actor: many snapshots over one base model, sampled in batches. See `docs/sampling.md`.

Requests and replies import without torch; the rest resolves when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinker_actors.lazy import lazy_names
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

__getattr__ = lazy_names(__name__, {"Sampler": "sampler"})
