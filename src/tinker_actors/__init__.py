"""An asyncio actor framework for agentic reinforcement learning of language models.

Names are looked up when first used, so that importing this package loads neither torch nor ZeroMQ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinker_actors.lazy import lazy_names

if TYPE_CHECKING:
    from tinker_actors.actors import Actor, ActorRef, Mesh, RestartPolicy
    from tinker_actors.client import ServiceClient
    from tinker_actors.data import Datum, Episode, EpisodeEnd, Group, Message, Trajectory, Turn, TurnEnd
    from tinker_actors.environments import Agent, Environment, Step
    from tinker_actors.errors import TinkerActorsError
    from tinker_actors.sampling import Sampler, SamplingParams
    from tinker_actors.scheduler import RunConfig
    from tinker_actors.training import Trainer

_HOMES = {
    "actors": ("Actor", "ActorRef", "Mesh", "RestartPolicy"),
    "client": ("ServiceClient",),
    "data": ("Datum", "Episode", "EpisodeEnd", "Group", "Message", "Trajectory", "Turn", "TurnEnd"),
    "environments": ("Agent", "Environment", "Step"),
    "errors": ("TinkerActorsError",),
    "sampling": ("Sampler", "SamplingParams"),
    "scheduler": ("RunConfig",),
    "training": ("Trainer",),
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
    "ServiceClient",
    "Step",
    "TinkerActorsError",
    "Trainer",
    "Trajectory",
    "Turn",
    "TurnEnd",
]

__getattr__ = lazy_names(__name__, _HOME_OF)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
