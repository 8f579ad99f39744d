"""Numbers about a phase's episodes, for the metrics of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from tinker_actors.data import EpisodeEnd, Group, Trajectory


def rollout_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Means and counts over the trainable seats of the valid episodes; frozen seats, failed episodes and seats that
    forfeited one don't count. Where every seat is frozen, all of them do.

    Args:
        groups: Of one phase.

    Returns:
        `episodes`, `failed`, `truncated` (a share), `forfeited` (a count), `reward` (per trajectory), `turns` (per
        trajectory), `action_tokens` (in all), `tokens_per_turn`, and `reward/SEAT` for each of several seats. The
        environments' own metrics are averaged as `env/NAME` over the valid episodes that report them.
    """
    episodes = [episode for group in groups for episode in group.episodes]
    valid = [episode for group in groups for episode in group.valid]
    entries = [entry for group in groups for seat in group.trainable_seats for entry in group.trajectories(seat)]
    entries = entries or [entry for episode in valid for entry in episode.trajectories if not entry.trainable]
    turns = [turn for entry in entries for turn in entry.turns]
    metrics: dict[str, float] = {
        "episodes": len(episodes),
        "failed": len(episodes) - len(valid),
        "truncated": _mean([episode.end.is_truncated for episode in valid]),
        "forfeited": sum(episode.end is EpisodeEnd.FORFEITED for episode in valid),
        "reward": _mean([entry.reward for entry in entries]),
        "turns": _mean([len(entry.turns) for entry in entries]),
        "action_tokens": sum(entry.action_tokens for entry in entries),
        "tokens_per_turn": _mean([len(turn.action) for turn in turns]),
    }
    by_seat: dict[str, list[Trajectory]] = {}
    for entry in entries:
        by_seat.setdefault(entry.seat, []).append(entry)
    if len(by_seat) > 1:
        for seat, found in by_seat.items():
            metrics[f"reward/{seat}"] = _mean([entry.reward for entry in found])
    for name in sorted({name for episode in valid for name in episode.metrics}):
        metrics[f"env/{name}"] = _mean([episode.metrics[name] for episode in valid if name in episode.metrics])
    return metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Staleness:
    """How old what a policy trains on is at one optimizer step, in optimizer steps.

    Attributes:
        mean: Over trajectories.
        most: Of the stalest trajectory.
    """

    mean: float
    most: int


def trajectory_staleness(trajectory: Trajectory, trainer_step: int) -> int | None:
    """Optimizer steps between the oldest snapshot that sampled a token of a trajectory and the trainer.

    Args:
        trajectory: Of any seat.
        trainer_step: Optimizer steps that the policy has behind it.

    Returns:
        None if no policy sampled it.
    """
    steps = [turn.sampling.snapshot_step for turn in trajectory.turns if turn.sampling is not None]
    return trainer_step - min(steps) if steps else None


def staleness(groups: Sequence[Group], policy: str, *, trainer_step: int) -> Staleness:
    """The staleness of a policy's trainable trajectories at an optimizer step.

    Args:
        groups: Of one phase.
        policy: Whose trajectories.
        trainer_step: Optimizer steps that the policy has behind it.
    """
    entries = [entry for group in groups for seat in group.trainable_seats for entry in group.trajectories(seat)]
    found = [trajectory_staleness(entry, trainer_step) for entry in entries if entry.policy == policy]
    known = [value for value in found if value is not None]
    return Staleness(mean=_mean(known), most=max(known, default=0))


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0
