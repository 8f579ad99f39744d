"""The agent protocol coordinator: internal barriers within an episode, the global one between phases."""

from tinker_actors.coordinator.barrier import SeatFailedError
from tinker_actors.coordinator.clock import EpisodeClock, SeatLateError
from tinker_actors.coordinator.coordinator import EpisodeCoordinator
from tinker_actors.coordinator.described import describe_error
from tinker_actors.coordinator.episode import episode_protocol, failed_episode, run_episode
from tinker_actors.coordinator.limits import EpisodeLimits
from tinker_actors.coordinator.phases import Phase, PhaseBarrier, PhaseBrokenError, PhaseState
from tinker_actors.coordinator.protocol import EpisodeProtocol, EpisodeState, Stage
from tinker_actors.coordinator.run import RunCoordinator

__all__ = [
    "EpisodeClock",
    "EpisodeCoordinator",
    "EpisodeLimits",
    "EpisodeProtocol",
    "EpisodeState",
    "Phase",
    "PhaseBarrier",
    "PhaseBrokenError",
    "PhaseState",
    "RunCoordinator",
    "SeatFailedError",
    "SeatLateError",
    "Stage",
    "describe_error",
    "episode_protocol",
    "failed_episode",
    "run_episode",
]
