"""The client of a training service, with the Tinker client's names and this package's own types. See `docs/client.md`.

The same program trains in process, against `tinker-actors serve`, and against a remote Tinker service.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinker_actors.lazy import lazy_names

if TYPE_CHECKING:
    from tinker_actors.client.contract import Capabilities, ModelInfo, Saved, SupportedModel
    from tinker_actors.client.futures import ApiFuture
    from tinker_actors.client.sampling import SamplingClient
    from tinker_actors.client.service import ServiceClient
    from tinker_actors.client.training import TrainingClient

_HOME_OF = {
    "ApiFuture": "futures",
    "Capabilities": "contract",
    "ModelInfo": "contract",
    "SamplingClient": "sampling",
    "Saved": "contract",
    "ServiceClient": "service",
    "SupportedModel": "contract",
    "TrainingClient": "training",
}

__all__ = [
    "ApiFuture",
    "Capabilities",
    "ModelInfo",
    "SamplingClient",
    "Saved",
    "ServiceClient",
    "SupportedModel",
    "TrainingClient",
]

__getattr__ = lazy_names(__name__, _HOME_OF)
