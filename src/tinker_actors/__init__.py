"""An asyncio actor framework for agentic reinforcement learning of language models.

Names are looked up when first used, so that importing this package loads neither torch nor ZeroMQ.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tinker_actors.actors import Actor, ActorRef, Mesh, RestartPolicy
    from tinker_actors.data import Datum, Episode, EpisodeEnd, Group, Message, Trajectory, Turn, TurnEnd
    from tinker_actors.environments import Agent, Environment, Step
    from tinker_actors.errors import TinkerActorsError
    from tinker_actors.sampling import Sampler, SamplingParams
    from tinker_actors.scheduler import RunConfig
    from tinker_actors.training import Trainer

_HOMES = {
    "tinker_actors.actors": ("Actor", "ActorRef", "Mesh", "RestartPolicy"),
    "tinker_actors.data": ("Datum", "Episode", "EpisodeEnd", "Group", "Message", "Trajectory", "Turn", "TurnEnd"),
    "tinker_actors.environments": ("Agent", "Environment", "Step"),
    "tinker_actors.errors": ("TinkerActorsError",),
    "tinker_actors.sampling": ("Sampler", "SamplingParams"),
    "tinker_actors.scheduler": ("RunConfig",),
    "tinker_actors.training": ("Trainer",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Actor",
    "ActorRef",
    "Agent",
    "Datum",
    "Environment",
    "Episode",
    "EpisodeEnd",
    "Group",
    "Mesh",
    "Message",
    "RestartPolicy",
    "RunConfig",
    "Sampler",
    "SamplingParams",
    "Step",
    "TinkerActorsError",
    "Trainer",
    "Trajectory",
    "Turn",
    "TurnEnd",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
