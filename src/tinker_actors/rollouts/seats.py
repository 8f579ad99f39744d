"""Who fills a seat, as data that travels to the workers; each builds the agents of its own episodes from it."""

from __future__ import annotations

import importlib
import inspect
import random
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
    Overflow,
    PolicyAgent,
    SamplesTokens,
    ScriptedAgent,
)
from tinker_actors.errors import ConfigError
from tinker_actors.models.renderer import Renderer
from tinker_actors.rollouts.pools import HostedEnvironment
from tinker_actors.sampling.requests import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySeat:
    """A policy's snapshot plays.

    Attributes:
        sampler: The ref of a sampler that serves the snapshot.
        policy: The policy's id.
        snapshot: The snapshot's handle. A phase is bound to it before it begins.
        params: How to sample; seeds are derived per turn.
        trainable: Whether the turns may enter datums and statistics; False for a frozen opponent.
        context_length: Tokens of prompt and reply together; None leaves the limit to the sampler.
        max_prompt: The most tokens of a prompt; None for no limit.
        overflow: "refuse" a longer prompt, or "keep_last" exactly its last tokens.
    """

    sampler: SamplesTokens
    policy: str
    snapshot: str
    params: SamplingParams = field(default_factory=SamplingParams)
    trainable: bool = True
    context_length: int | None = None
    max_prompt: int | None = None
    overflow: Overflow = "refuse"


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


Seat = PolicySeat | DemonstrationSeat | ScriptedSeat


def agent_for(
    spec: Seat, *, seat: str, live: LiveEnvironment | HostedEnvironment, renderer: Renderer, seed: int
) -> Agent:
    """The agent of one seat in one episode.

    Args:
        spec: Who plays.
        seat: Where.
        live: The episode's environment.
        renderer: Of the policies' base model.
        seed: The episode's.

    Raises:
        ConfigError: As `script`.
    """
    if isinstance(spec, DemonstrationSeat):
        return DemonstrationAgent(partial(live.demonstrate, seat), renderer, trainable=spec.trainable)
    if isinstance(spec, ScriptedSeat):
        function = script(spec, live.environment)
        return ScriptedAgent(partial(function, **_given(function, seat, seed), **spec.options))
    return PolicyAgent(
        spec.sampler,
        renderer,
        spec.params,
        policy=spec.policy,
        snapshot=spec.snapshot,
        seed=seed,
        seat=seat,
        context_length=spec.context_length,
        max_prompt=spec.max_prompt,
        overflow=spec.overflow,
        trainable=spec.trainable,
    )


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
        raise ConfigError(
            f"scripted seat {path!r} is not found ({error}); package.module:function is needed, or the name of a "
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


def _given(function: Callable[..., Any], seat: str, seed: int) -> dict[str, Any]:
    """What a function is given besides the messages, if it has parameters for it."""
    known = inspect.signature(function).parameters
    given = {"rng": lambda: random.Random(derive_seed(seed, "script", seat)), "seat": lambda: seat}
    return {name: make() for name, make in given.items() if name in known}
