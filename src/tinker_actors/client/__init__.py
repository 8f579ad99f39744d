"""The client of a training service, with the Tinker client's names and this package's own types. See `docs/client.md`.

The same program trains in process, against `tinker-actors serve`, and against a remote Tinker service.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinker_actors.lazy import lazy_names

if TYPE_CHECKING:
    from tinker_actors.client.sampling import SamplingClient
    from tinker_actors.client.service import ServiceClient
    from tinker_actors.client.training import TrainingClient
    from tinker_actors.services.contract import Capabilities, ModelInfo, Saved, SupportedModel
    from tinker_actors.services.futures import ApiFuture

_HOME_OF = {
    "ApiFuture": ".services.futures",
    "Capabilities": ".services.contract",
    "ModelInfo": ".services.contract",
    "SamplingClient": "sampling",
    "Saved": ".services.contract",
    "ServiceClient": "service",
    "SupportedModel": ".services.contract",
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
