"""Metrics and plots: where a run's numbers go."""

from tinker_actors.telemetry.jsonl import JsonlWriter, keep_records, read_jsonl
from tinker_actors.telemetry.plots import plot_losses, plot_rewards

__all__ = ["JsonlWriter", "keep_records", "plot_losses", "plot_rewards", "read_jsonl"]
