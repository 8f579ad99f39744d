"""Metrics and plots: where a run's numbers go."""

from tinker_actors.telemetry.jsonl import JsonlWriter, keep_records, read_jsonl
from tinker_actors.telemetry.plots import plot_losses, plot_rewards
from tinker_actors.telemetry.to_files import JsonlTracker, TensorBoardTracker
from tinker_actors.telemetry.to_services import TrackioTracker, WandbTracker
from tinker_actors.telemetry.tracker import Tracker, Tracking

__all__ = [
    "JsonlTracker",
    "JsonlWriter",
    "TensorBoardTracker",
    "Tracker",
    "Tracking",
    "TrackioTracker",
    "WandbTracker",
    "keep_records",
    "plot_losses",
    "plot_rewards",
    "read_jsonl",
]
