"""The agent protocol coordinator: internal barriers within an episode, the global one between phases."""

from tinker_actors.coordinator.barrier import SeatFailedError
from tinker_actors.coordinator.clock import EpisodeClock
from tinker_actors.coordinator.episode import describe_error, failed_episode, run_episode
from tinker_actors.coordinator.limits import EpisodeLimits
from tinker_actors.coordinator.phases import Phase, PhaseBarrier, PhaseBrokenError, PhaseState

__all__ = [
    "EpisodeClock",
    "EpisodeLimits",
    "Phase",
    "PhaseBarrier",
    "PhaseBrokenError",
    "PhaseState",
    "SeatFailedError",
    "describe_error",
    "failed_episode",
    "run_episode",
]
