"""Commands that need an extra say which, rather than fail in an import."""

from __future__ import annotations

import importlib.util

from tinker_actors.errors import ConfigError


def check_extra(extra: str, *packages: str) -> None:
    """Find out whether what a command needs is installed.

    Raises:
        ConfigError: A package is not.
    """
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise ConfigError(f"{package} is not installed; the extra tinker-actors[{extra}] is needed")
