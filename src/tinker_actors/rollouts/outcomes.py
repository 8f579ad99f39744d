"""Who won: the outcomes of games between seats, and each policy's share of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Literal, TypeAlias

from tinker_actors.data import Episode, Group, Trajectory, all_equal

Outcome: TypeAlias = Literal["win", "draw", "loss"]
_POINTS: Mapping[Outcome, float] = {"win": 1.0, "draw": 0.5, "loss": 0.0}


def outcome(episode: Episode, trajectory: Trajectory) -> Outcome:
    """How an episode went for a seat: a draw if all earned the same, a win if nobody earned more, else a loss."""
    rewards = [entry.reward for entry in episode.trajectories]
    if all_equal(rewards):
        return "draw"
    return "win" if all_equal((trajectory.reward, max(rewards))) else "loss"


def seat_outcomes(groups: Sequence[Group]) -> dict[str, float]:
    """`win/SEAT`, `draw/SEAT` and `loss/SEAT`: shares of the valid episodes in which the seat was trainable.

    Empty for environments of one seat.
    """
    found: dict[str, list[Outcome]] = {}
    for episode in _games(groups):
        for entry in episode.trajectories:
            if entry.trainable:
                found.setdefault(entry.seat, []).append(outcome(episode, entry))
    return {f"{name}/{seat}": share for seat, own in found.items() for name, share in _shares(own).items()}


def policy_metrics(groups: Sequence[Group], policies: Sequence[str]) -> dict[str, float]:
    """What each policy did in its trainable trajectories of the valid episodes.

    Args:
        groups: Of one phase.
        policies: Which policies.

    Returns:
        `policy/NAME/reward` and `policy/NAME/turns` (per trajectory), `policy/NAME/action_tokens` (in all) and, with
        several seats, the shares `policy/NAME/win`, `policy/NAME/draw` and `policy/NAME/loss`.
    """
    metrics: dict[str, float] = {}
    for policy in policies:
        pairs = [
            (episode, entry)
            for group in groups
            for episode in group.valid
            for entry in episode.trajectories
            if entry.trainable and entry.policy == policy
        ]
        numbers = {
            "reward": fmean(entry.reward for _, entry in pairs) if pairs else 0.0,
            "turns": fmean(len(entry.turns) for _, entry in pairs) if pairs else 0.0,
            "action_tokens": float(sum(entry.action_tokens for _, entry in pairs)),
            **_shares([outcome(*pair) for pair in pairs if len(pair[0].trajectories) > 1]),
        }
        metrics |= {f"policy/{policy}/{name}": value for name, value in numbers.items()}
    return metrics


def points(groups: Sequence[Group]) -> dict[str, list[float]]:
    """What those who learn won against each frozen snapshot: 1, 1/2 or 0 for every valid episode and seat that learns.

    By the snapshot's handle.
    """
    found: dict[str, list[float]] = {}
    for episode in _games(groups):
        won = [_POINTS[outcome(episode, entry)] for entry in episode.trajectories if entry.trainable]
        for handle in {_snapshot(entry) for entry in episode.trajectories if not entry.trainable} - {None}:
            found.setdefault(str(handle), []).extend(won)
    return found


def _games(groups: Sequence[Group]) -> Iterable[Episode]:
    return (episode for group in groups for episode in group.valid if len(episode.trajectories) > 1)


def _snapshot(trajectory: Trajectory) -> str | None:
    """Which snapshot played; None for others than policies, and for a seat that never came to act."""
    return next((turn.sampling.snapshot_min for turn in trajectory.turns if turn.sampling is not None), None)


def _shares(outcomes: Sequence[Outcome]) -> dict[str, float]:
    names: tuple[Outcome, ...] = ("win", "draw", "loss")
    return {name: outcomes.count(name) / len(outcomes) for name in names} if outcomes else {}
