"""Plots of a run, as PNG files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def plot_rewards(
    path: Path, *, title: str, rewards: Sequence[tuple[int, float]], evaluations: Sequence[tuple[int, float]]
) -> None:
    """Mean reward against update steps.

    Args:
        path: The PNG to write.
        title: Stands above the plot.
        rewards: (step, mean reward of the step's rollouts).
        evaluations: (steps done, mean reward of an evaluation).
    """
    # the object interface needs no display and leaves pyplot's global state alone
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.0), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if rewards:
        axes.plot(*zip(*rewards, strict=True), color="#3b6ea5", linewidth=1.6, label="rollouts")
    if evaluations:
        axes.plot(*zip(*evaluations, strict=True), color="#c8553d", marker="o", linewidth=1.2, label="evaluation")
    axes.set(title=title, xlabel="update step", ylabel="mean episode reward")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if rewards or evaluations:
        axes.legend(frameon=False, loc="lower right")
    figure.savefig(path)
