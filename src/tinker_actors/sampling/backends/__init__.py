"""Other engines behind the sampler's contract: a vLLM server, a remote Tinker service. See `docs/backends.md`.

Settings import without torch or any engine's packages; the rest resolves when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinker_actors.lazy import lazy_names
from tinker_actors.sampling.backends.contract import ServesSnapshots
from tinker_actors.sampling.backends.settings import LocalSettings, TinkerSettings, VllmSettings

if TYPE_CHECKING:
    from tinker_actors.sampling.backends.samplers import TinkerSampler, VllmSampler

__all__ = [
    "LocalSettings",
    "ServesSnapshots",
    "TinkerSampler",
    "TinkerSettings",
    "VllmSampler",
    "VllmSettings",
]

__getattr__ = lazy_names(__name__, {"TinkerSampler": "samplers", "VllmSampler": "samplers"})
