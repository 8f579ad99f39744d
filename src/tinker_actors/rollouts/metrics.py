"""Numbers about a phase's episodes, for the metrics of a run."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from tinker_actors.data import Group, Trajectory


def rollout_metrics(groups: Sequence[Group], *, trainer_step: int | None = None) -> dict[str, float]:
    """Means and counts over the trainable seats of the valid episodes; frozen seats and failed episodes don't count.

    Args:
        groups: Of one phase.
        trainer_step: The policies' step, for the staleness of what was sampled.

    Returns:
        `episodes`, `failed`, `truncated` (a share), `reward` (per trajectory), `turns` (per trajectory),
        `action_tokens` (in all), `tokens_per_turn`, `staleness` (steps, if `trainer_step` is given), and
        `reward/SEAT` for each of several seats. The environments' own metrics are averaged as `env/NAME` over
        the valid episodes that report them.
    """
    episodes = [episode for group in groups for episode in group.episodes]
    valid = [episode for group in groups for episode in group.valid]
    entries = [entry for episode in valid for entry in episode.trajectories if entry.trainable]
    turns = [turn for entry in entries for turn in entry.turns]
    metrics: dict[str, float] = {
        "episodes": len(episodes),
        "failed": len(episodes) - len(valid),
        "truncated": _mean([episode.end.is_truncated for episode in valid]),
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
    if trainer_step is not None:
        steps = [trainer_step - turn.sampling.snapshot_step for turn in turns if turn.sampling is not None]
        metrics["staleness"] = _mean(steps)
    for name in sorted({name for episode in valid for name in episode.metrics}):
        metrics[f"env/{name}"] = _mean([episode.metrics[name] for episode in valid if name in episode.metrics])
    return metrics


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0
