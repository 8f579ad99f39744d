"""Plots of a run, as PNG files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

Points = Sequence[tuple[int, float]]


def plot_rewards(path: Path, *, title: str, rewards: Points, evaluations: Points) -> None:
    """Mean reward against update steps.

    Args:
        path: The PNG to write.
        title: Stands above the plot.
        rewards: (step, mean reward of the step's rollouts).
        evaluations: (steps done, mean reward of an evaluation).
    """
    _plot(path, title, "mean episode reward", "lower right", {"rollouts": rewards, "evaluation": evaluations})


def plot_losses(path: Path, *, title: str, losses: Points, evaluations: Points) -> None:
    """Loss per token against optimizer steps.

    Args:
        path: The PNG to write.
        title: Stands above the plot.
        losses: (step, loss of the step's examples before it).
        evaluations: (steps done, loss of an evaluation).
    """
    _plot(path, title, "loss per token (nats)", "upper right", {"training": losses, "evaluation": evaluations})


def _plot(
    path: Path, title: str, label: str, legend: Literal["lower right", "upper right"], curves: Mapping[str, Points]
) -> None:
    # the object interface needs no display and leaves pyplot's global state alone
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.0), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    styles = ({"color": "#3b6ea5", "linewidth": 1.6}, {"color": "#c8553d", "linewidth": 1.2, "marker": "o"})
    for (name, points), style in zip(curves.items(), styles, strict=True):
        if points:
            axes.plot(*zip(*points, strict=True), label=name, **style)
    axes.set(title=title, xlabel="update step", ylabel=label)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if any(curves.values()):
        axes.legend(frameon=False, loc=legend)
    figure.savefig(path)
