"""Supervised fine-tuning on demonstrations: cross-entropy on the action tokens of recorded trajectories."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tinker_actors.data import Datum, Group, sft_datums


def demonstration_datums(groups: Sequence[Group], seats: Collection[str] | None = None) -> tuple[Datum, ...]:
    """One batch of supervised datums, weighted so that the summed loss is the mean over all action tokens.

    Args:
        groups: Of demonstrations.
        seats: Whose; None for all.
    """
    episodes = [episode for group in groups for episode in group.valid]
    trajectories = [
        entry for episode in episodes for entry in episode.trajectories if seats is None or entry.seat in seats
    ]
    tokens = sum(trajectory.action_tokens for trajectory in trajectories)
    if not tokens:
        return ()
    return tuple(datum for trajectory in trajectories for datum in sft_datums(trajectory, weight=1.0 / tokens))
