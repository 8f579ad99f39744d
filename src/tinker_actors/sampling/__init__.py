"""The sampler actor: many snapshots over one base model, sampled in one running batch. See `docs/sampling.md`.

Requests and replies import without torch; the rest resolves when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinker_actors.lazy import lazy_names
from tinker_actors.sampling.metrics import AdapterStats, Residence, SamplerStats, Spread
from tinker_actors.sampling.requests import (
    EngineDiedError,
    InvalidRequestError,
    Overloaded,
    Sample,
    SampledToken,
    SamplingParams,
    SamplingReply,
    SamplingRequest,
)
from tinker_actors.sampling.scoring import PromptScores, PromptScoring

if TYPE_CHECKING:
    from tinker_actors.sampling.sampler import Sampler

__all__ = [
    "AdapterStats",
    "EngineDiedError",
    "InvalidRequestError",
    "Overloaded",
    "PromptScores",
    "PromptScoring",
    "Residence",
    "Sample",
    "SampledToken",
    "Sampler",
    "SamplerStats",
    "SamplingParams",
    "SamplingReply",
    "SamplingRequest",
    "Spread",
]

__getattr__ = lazy_names(__name__, {"Sampler": "sampler"})
