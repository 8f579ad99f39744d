"""Who fills a seat, as data that travels to the workers; each builds the agents of its own episodes from it."""

from __future__ import annotations

import importlib
import inspect
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tinker_actors.data import derive_seed
from tinker_actors.environments import (
    Agent,
    DemonstrationAgent,
    Environment,
    LiveEnvironment,
    PolicyAgent,
    PolicySeat,
    ScriptedAgent,
)
from tinker_actors.environments.outside import (
    Capture,
    CommandHarness,
    Difference,
    EndpointServer,
    FunctionHarness,
    Harness,
    HarnessAgent,
    check_harness,
    load_harness,
)
from tinker_actors.environments.person import PersonAgent, Terminal
from tinker_actors.environments.tools import tool_format
from tinker_actors.errors import ConfigError
from tinker_actors.models.rendering import ChatRenderer
from tinker_actors.rollouts.pools import HostedEnvironment


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessSeat(PolicySeat):
    """A harness plays, with the policy's snapshot as its model behind an OpenAI-compatible endpoint.

    Attributes:
        harness: `package.module:function`, from a `HarnessCall` to the action's text; or
        command: a program and its arguments, which writes that text to its standard output.
        options: Keyword arguments of the function.
        seconds: For one answer; None for no limit but the episode's.
        difference: What becomes of a temperature or top-p that the harness asks for and that isn't the seat's.
        tool_format: How the model writes the calls of the harness's tools, as a `Toolbox` takes it.
    """

    harness: str = ""
    command: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    seconds: float | None = None
    difference: Difference = "refuse"
    tool_format: str = "hermes"

    def __post_init__(self) -> None:
        PolicySeat.__post_init__(self)
        if self.max_prompt is not None:
            raise ConfigError(
                f"max_prompt is {self.max_prompt}, but a harness makes its prompts itself; context_length bounds them"
            )
        if bool(self.harness) == bool(self.command):
            raise ConfigError(f"harness is {self.harness!r} and command {list(self.command)}; one of them is needed")
        if self.trainable and self.difference == "honour":
            raise ConfigError(
                "difference is 'honour', but the seat is trained on, and its trainer scores tokens at the seat's own "
                "temperature; 'refuse' or 'override' is needed"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class DemonstrationSeat:
    """The environment's own demonstrations play.

    Attributes:
        trainable: Whether supervised datums may be made of them.
    """

    trainable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedSeat:
    """A function plays.

    Attributes:
        function: `package.module:function`, or the name of a function in the environment's own file. It takes the
            messages that the seat has been shown since it last acted and returns the action's text; plain or async.
            Parameters that it calls `rng` and `seat` get the episode's own luck and the seat's name.
        options: Further keyword arguments.
    """

    function: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class PersonSeat:
    """A person at the terminal of the worker's process plays."""


Seat = PolicySeat | HarnessSeat | DemonstrationSeat | ScriptedSeat | PersonSeat


def agent_for(
    spec: Seat,
    *,
    seat: str,
    live: LiveEnvironment | HostedEnvironment,
    renderer: ChatRenderer,
    seed: int,
    endpoint: EndpointServer | None = None,
) -> Agent:
    """The agent of one seat in one episode.

    Args:
        spec: Who plays.
        seat: Where.
        live: The episode's environment.
        renderer: Of the policies' base model.
        seed: The episode's.
        endpoint: The process's, where there are harnesses.

    Raises:
        ConfigError: As `script` and `load_harness`.
    """
    if isinstance(spec, DemonstrationSeat):
        return DemonstrationAgent(partial(live.demonstrate, seat), renderer, trainable=spec.trainable)
    if isinstance(spec, ScriptedSeat):
        return scripted_agent(spec, live.environment, seat=seat, seed=seed)
    if isinstance(spec, HarnessSeat):
        return _harness_agent(spec, seat, renderer, seed, endpoint)
    if isinstance(spec, PersonSeat):
        return PersonAgent(Terminal.of_process(), seat)
    return PolicyAgent(spec, renderer, seed=seed, seat=seat)


def _harness_agent(
    spec: HarnessSeat, seat: str, renderer: ChatRenderer, seed: int, endpoint: EndpointServer | None
) -> HarnessAgent:
    if endpoint is None:
        raise ConfigError(f"seat {seat!r} is played by a harness, but nobody serves it an endpoint here")
    capture = Capture(
        spec, renderer, seed=seed, seat=seat, format=tool_format(spec.tool_format), difference=spec.difference
    )
    return HarnessAgent(harness_of(spec), capture, endpoint, seconds=spec.seconds)


def harness_of(spec: HarnessSeat) -> Harness:
    """The harness of a seat.

    Raises:
        ConfigError: It isn't found, or doesn't take the options.
    """
    if spec.command:
        return CommandHarness(spec.command)
    function = load_harness(spec.harness)
    check_harness(function, spec.harness, spec.options)
    return FunctionHarness(function, spec.options)


def scripted_agent(spec: ScriptedSeat, environment: type[Environment], *, seat: str, seed: int) -> Agent:
    """The agent of a scripted seat in one episode; arguments as of `agent_for`.

    Raises:
        ConfigError: As `script`.
    """
    function = script(spec, environment)
    return ScriptedAgent(partial(function, **_given(function, seat, seed), **spec.options))


def script(spec: ScriptedSeat, environment: type[Environment]) -> Callable[..., Any]:
    """The function of a scripted seat.

    Raises:
        ConfigError: It isn't found, or doesn't take the options.
    """
    path, (module, colon, name) = spec.function, spec.function.partition(":")
    if not colon:
        module, name = environment.__module__, path
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        why = str(error) if colon else f"the environment's file has {_listed(environment)}"
        raise ConfigError(
            f"scripted seat {path!r} is not found ({why}); package.module:function is needed, or the name of a "
            "function in the environment's file"
        ) from None
    if not callable(found):
        raise ConfigError(f"scripted seat {path!r} is {found!r}; a function is needed")
    try:
        inspect.signature(found).bind((), **_given(found, "", 0), **spec.options)
    except TypeError as error:
        options = ", ".join(f"{key}={value!r}" for key, value in spec.options.items())
        raise ConfigError(f"scripted seat {path!r} can't be called with (messages, {options}): {error}") from None
    return found


def _listed(environment: type[Environment]) -> str:
    """The functions of an environment's file that can play a seat."""
    members = vars(sys.modules[environment.__module__])
    found = [
        name
        for name, member in members.items()
        if inspect.isfunction(member) and next(iter(inspect.signature(member).parameters), None) == "messages"
    ]
    return " and ".join(found) or "none"


def _given(function: Callable[..., Any], seat: str, seed: int) -> dict[str, Any]:
    """What a function is given besides the messages, if it has parameters for it."""
    known = inspect.signature(function).parameters
    given = {"rng": lambda: random.Random(derive_seed(seed, "script", seat)), "seat": lambda: seat}
    return {name: make() for name, make in given.items() if name in known}
