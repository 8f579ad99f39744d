"""Whether a service can be reached and has what a run needs, asked once before anything begins.

The official client itself asks for minutes before it gives an address up.
"""

from __future__ import annotations

from typing import Any, cast

from tinker_actors.errors import ConfigError
from tinker_actors.models.catalogue import resolve
from tinker_actors.sampling.backends.tinker_wire import official_client
from tinker_actors.services.trainer_settings import TinkerTrainerSettings

_PATIENCE = 10.0
"""Seconds for the answer."""


def check_service(settings: TinkerTrainerSettings, base_model: str) -> None:
    """Refuse a service that isn't there, doesn't take the key, or hasn't the base model.

    Nothing is asked where the address is the official client's own: whatever fails there, fails when the run begins.

    Args:
        settings: Which service.
        base_model: Name of the base model here, and there too unless the settings say another.

    Raises:
        ConfigError: Names what is wrong; also where the extra `tinker` isn't installed, or the key isn't set.
    """
    official_client()
    import httpx  # comes with it

    key, url = settings.api_key(), settings.address
    base_model = settings.base_model or resolve(base_model).name
    if url is None:
        return
    try:
        answer = httpx.get(
            f"{url.rstrip('/')}/api/v1/get_server_capabilities", headers={"X-API-Key": key}, timeout=_PATIENCE
        )
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ConfigError(f"the Tinker service at {url} can't be reached: {error}") from error
    if answer.status_code in (401, 403):
        raise ConfigError(
            f"the Tinker service at {url} refuses the key in {settings.api_key_variable} ({answer.status_code}); one "
            "of its own is needed"
        )
    served = _served(answer)
    if served is None:
        raise ConfigError(
            f"what answers at {url} is no Tinker service: {answer.status_code} for get_server_capabilities"
        )
    if base_model not in served:
        raise ConfigError(
            f"the Tinker service at {url} has no base model {base_model!r}, but {', '.join(served) or 'none'}; "
            "base_model says what it calls the run's"
        )


def _served(answer: Any) -> list[str] | None:
    """The base models that an answer names; None if it is none of a Tinker service."""
    if answer.status_code != 200:
        return None
    try:
        body = cast("dict[str, Any]", answer.json())
        return [str(model["model_name"]) for model in body["supported_models"]]
    except (ValueError, KeyError, TypeError):
        return None
