"""Environments of other libraries, by names such as `gymnasium:FrozenLake-v1`. Each library is an extra."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tinker_actors.environments.environment import Environment
from tinker_actors.errors import ConfigError

if TYPE_CHECKING:
    from tinker_actors.environments.libraries.cookbook import CookbookEnvironment
    from tinker_actors.environments.libraries.gymnasium import GymnasiumEnvironment
    from tinker_actors.environments.libraries.illegal import IllegalActionError, IllegalRule
    from tinker_actors.environments.libraries.openenv import OpenEnvEnvironment
    from tinker_actors.environments.libraries.pettingzoo import PettingZooEnvironment, PettingZooParallelEnvironment
    from tinker_actors.environments.libraries.reasoning_gym import ReasoningGymEnvironment
    from tinker_actors.environments.libraries.textarena import TextArenaEnvironment
    from tinker_actors.environments.libraries.verifiers import VerifiersEnvironment

# in the order of the documentation: what names begin with, and the module and class that wraps such environments
_ADAPTERS = {
    "gymnasium": ("gymnasium", "GymnasiumEnvironment"),
    "pettingzoo": ("pettingzoo", "PettingZooEnvironment"),
    "pettingzoo_parallel": ("pettingzoo", "PettingZooParallelEnvironment"),
    "textarena": ("textarena", "TextArenaEnvironment"),
    "reasoning_gym": ("reasoning_gym", "ReasoningGymEnvironment"),
    "verifiers": ("verifiers", "VerifiersEnvironment"),
    "openenv": ("openenv", "OpenEnvEnvironment"),
    "cookbook": ("cookbook", "CookbookEnvironment"),
}
_MODULES = {name: module for module, name in _ADAPTERS.values()} | {
    "IllegalActionError": "illegal",
    "IllegalRule": "illegal",
}

LIBRARIES: tuple[str, ...] = tuple(_ADAPTERS)
"""What names of environments of other libraries begin with, before the colon."""

__all__ = [
    "LIBRARIES",
    "CookbookEnvironment",
    "GymnasiumEnvironment",
    "IllegalActionError",
    "IllegalRule",
    "OpenEnvEnvironment",
    "PettingZooEnvironment",
    "PettingZooParallelEnvironment",
    "ReasoningGymEnvironment",
    "TextArenaEnvironment",
    "VerifiersEnvironment",
    "library_environment",
]


def library_environment(library: str, target: str, options: Mapping[str, Any]) -> type[Environment]:
    """A class for an environment of a library, which takes these options.

    Args:
        library: One of `LIBRARIES`.
        target: What the library calls it.
        options: Of the class that wraps it, and of the library.

    Raises:
        ConfigError: The library's package isn't installed, doesn't know the name or refuses an option.
    """
    if not target:
        raise ConfigError(f"environment '{library}:' names none; what {library} calls it is needed behind the colon")
    module, name = _ADAPTERS[library]
    return getattr(importlib.import_module(f"{__name__}.{module}"), name).named(target, options)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
