"""Who fills a seat, as data that travels to the workers; each builds the agents of its own episodes from it."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tinker_actors.environments import (
    Agent,
    DemonstrationAgent,
    LiveEnvironment,
    Overflow,
    PolicyAgent,
    SamplesTokens,
    ScriptedAgent,
)
from tinker_actors.errors import ConfigError
from tinker_actors.models.renderer import Renderer
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
        function: `package.module:function`, from the observation's messages to the action's text; plain or async.
    """

    function: str


Seat = PolicySeat | DemonstrationSeat | ScriptedSeat


def agent_for(spec: Seat, *, seat: str, live: LiveEnvironment, renderer: Renderer, seed: int) -> Agent:
    """The agent of one seat in one episode.

    Args:
        spec: Who plays.
        seat: Where.
        live: The episode's environment.
        renderer: Of the policies' base model.
        seed: The episode's.

    Raises:
        ConfigError: A scripted seat's function isn't found.
    """
    if isinstance(spec, DemonstrationSeat):
        return DemonstrationAgent(partial(live.demonstrate, seat), renderer, trainable=spec.trainable)
    if isinstance(spec, ScriptedSeat):
        return ScriptedAgent(_function(spec.function))
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


def _function(path: str) -> Any:
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"scripted seat {path!r} is not found ({error}); package.module:function is needed") from None
    if not callable(found):
        raise ConfigError(f"scripted seat {path!r} is {found!r}; a function is needed")
    return found
