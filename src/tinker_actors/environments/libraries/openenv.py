"""Environments of OpenEnv: `openenv:http://host:port` of one that is served, `openenv:package.module:Class` of one that
is run here.
"""

# pyright: reportMissingImports=false
# the package is in an environment of its own, where types aren't checked

from __future__ import annotations

import importlib
import json
import re
import typing
from collections.abc import Awaitable, Mapping
from typing import Any, ClassVar, cast

from tinker_actors.data import read_sampled_json
from tinker_actors.environments.environment import Observation, Step
from tinker_actors.environments.libraries.library import LibraryEnvironment, required
from tinker_actors.errors import ConfigError

required("openenv.core", "openenv")

from openenv.core import GenericEnvClient  # noqa: E402
from openenv.core.env_client import EnvClient  # noqa: E402
from openenv.core.env_server.interfaces import Environment as Served  # noqa: E402
from openenv.core.env_server.types import Action  # noqa: E402

_APART = ("done", "reward", "metadata")


class OpenEnvEnvironment(LibraryEnvironment):
    """Wraps a client of an OpenEnv server, or an OpenEnv environment in this process: one seat.

    What is done is `terminated`; OpenEnv doesn't tell of episodes that were cut short.

    Args:
        environment: A client, connected or not, or an environment; closed with this one.
        action_field: The field of the action that a seat's text is put in; None for the only one that is needed and a
            text. A text that holds a JSON object with the action's fields is that action.
        observation_field: The field of the observation that a seat sees; None for all of them, a line for each, or the
            text alone where there is one.
        options: As `LibraryEnvironment` takes them.
    """

    library: ClassVar[str] = "openenv"

    def __init__(
        self,
        environment: EnvClient[Any, Any, Any] | Served[Any, Any, Any],
        *,
        action_field: str | None = None,
        observation_field: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.wrapped = environment
        self._shown_field = observation_field
        self._action = None if isinstance(environment, EnvClient) else _action_class(type(environment))
        self._field = action_field or (self._action and _only_text(self._action))
        if self._field is None:
            raise ConfigError(
                f"{type(environment).__name__} needs the option 'action_field': the field of its actions that a seat's "
                "text is put in"
            )
        if self._action is not None and self._field not in self._action.model_fields:
            raise ConfigError(
                f"option 'action_field' is {self._field!r}; {self._action.__name__} has "
                f"{', '.join(sorted(self._action.model_fields.keys() - {'metadata'}))}"
            )

    @classmethod
    def opened(cls, target: str, arguments: Mapping[str, Any]) -> Any:
        """A client of the server at an address; or an instance of a class, with these arguments."""
        if re.match(r"(http|ws)s?://", target):
            return GenericEnvClient(base_url=target, **arguments)
        path, _, name = target.rpartition(":")
        found = getattr(importlib.import_module(path), name, None) if path else None
        if not (isinstance(found, type) and issubclass(found, EnvClient | Served)):
            raise ConfigError(
                f"environment 'openenv:{target}' is neither an address, such as http://localhost:8000, nor "
                "package.module:Class of an OpenEnv environment or client"
            )
        return found(**arguments)

    def describe(self, observation: Mapping[str, Any]) -> Observation:
        """What the seat sees of an observation's fields, without `done`, `reward` and `metadata`; may be overridden."""
        if self._shown_field is not None:
            if self._shown_field not in observation:
                raise ConfigError(
                    f"option 'observation_field' is {self._shown_field!r}; there is {', '.join(observation) or 'none'}"
                )
            observation = {self._shown_field: observation[self._shown_field]}
        texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in observation.items()}
        return next(iter(texts.values())) if len(texts) == 1 else "\n".join(f"{k}: {v}" for k, v in texts.items())

    def choose(self, text: str) -> Mapping[str, Any]:
        """The fields of the action that a text stands for; may be overridden."""
        try:
            given = read_sampled_json(text)
        except ValueError:
            given = None
        fields = cast("Mapping[str, Any]", given) if isinstance(given, dict) else {}
        known = self._action.model_fields.keys() if self._action else {self._field}
        return fields if fields and fields.keys() <= known | {self._field} else {cast("str", self._field): text}

    def reset(self, seed: int) -> Any:
        """Begin an episode."""
        return self._after(self.wrapped.reset(seed=self.library_seed(seed)), self._first)

    def step(self, action: str) -> Any:
        """Take the action."""
        fields = self.choose(action)
        return self._after(self.wrapped.step(self._action(**fields) if self._action else fields), self._stepped)

    def close(self) -> Any:
        """Close the client or the environment."""
        return self.wrapped.close()

    def let_go(self) -> None:
        """Close an environment that was made only to see what it is like; a client has connected to nothing yet."""
        if not isinstance(self.wrapped, EnvClient):
            self.wrapped.close()

    def _after(self, returned: Any, then: Any) -> Any:
        async def later(waited: Awaitable[Any]) -> Any:
            return then(await waited)

        return later(returned) if hasattr(returned, "__await__") else then(returned)

    def _first(self, result: Any) -> Observation:
        return self.describe(_parts(result)[0])

    def _stepped(self, result: Any) -> Step:
        fields, reward, done = _parts(result)
        return Step(observation=None if done else self.describe(fields), reward=reward, terminated=done)


def _parts(result: Any) -> tuple[Mapping[str, Any], float, bool]:
    """An observation's own fields, the reward, and whether it is done."""
    observation = getattr(result, "observation", result) if not hasattr(result, "model_dump") else result
    dump = getattr(observation, "model_dump", None)
    fields = cast("Mapping[str, Any]", observation if dump is None else dump(mode="json"))
    return {k: v for k, v in fields.items() if k not in _APART}, float(result.reward or 0.0), bool(result.done)


def _action_class(environment: type[Any]) -> type[Action]:
    """The class of an environment's actions: what its `step` is annotated with, or its base's parameter."""
    try:
        hinted = typing.get_type_hints(environment.step).get("action")
    except NameError:  # an annotation that only a type checker can resolve
        hinted = None
    bases = [part for base in getattr(environment, "__orig_bases__", ()) for part in typing.get_args(base)[:1]]
    for found in (hinted, *bases):
        if isinstance(found, type) and issubclass(found, Action):
            return found
    raise ConfigError(f"{environment.__name__}.step doesn't say what class its actions have; an annotation is needed")


def _only_text(action: type[Action]) -> str | None:
    needed = [name for name, field in action.model_fields.items() if field.is_required() and field.annotation is str]
    return needed[0] if len(needed) == 1 else None
