"""Configurations of a named thing of which each has settings of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tinker_actors.errors import ConfigError


def fill_own_settings(config: Any, settings: Sequence[str], defaults: Mapping[str, Any]) -> None:
    """Give those settings of a frozen dataclass that are None the defaults of the thing that its `name` names.

    Args:
        config: The dataclass, which has a `name`; called from its `__post_init__`.
        settings: All settings that any of the named things has.
        defaults: The settings of this one and their defaults.

    Raises:
        ConfigError: A setting is given that this one doesn't have.
    """
    for setting in settings:
        value = getattr(config, setting)
        if value is None and setting in defaults:
            object.__setattr__(config, setting, defaults[setting])
        elif value is not None and setting not in defaults:
            own = ", ".join(sorted(defaults)) or "none"
            raise ConfigError(f"{setting} is {value}, but {config.name} has no such setting; it has {own}")
