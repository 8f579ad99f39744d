"""Plots of a run, as PNG files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

Points = Sequence[tuple[int, float]]


_COLOURS = ("#3b6ea5", "#c8553d", "#4c8c4a", "#8a5fa8", "#b08d3c", "#5f6b73")


def plot_rewards(
    path: Path,
    *,
    title: str,
    rewards: Points,
    evaluations: Points,
    policies: Mapping[str, tuple[Points, Points]] | None = None,
) -> None:
    """Mean reward against update steps.

    Args:
        path: The PNG to write.
        title: Stands above the plot.
        rewards: (step, mean reward of the step's rollouts).
        evaluations: (steps done, mean reward of an evaluation).
        policies: The same two for each of several policies, which are drawn instead, in a colour each.
    """
    curves = [("rollouts", rewards, _line(0)), ("evaluation", evaluations, _marks(1))]
    for place, (policy, (own, evaluated)) in enumerate((policies or {}).items()):
        curves = curves if place else []
        curves += [(policy, own, _line(place)), (f"{policy}, evaluation", evaluated, _marks(place))]
    _plot(path, title, "mean episode reward", "lower right", curves)


def plot_losses(path: Path, *, title: str, losses: Points, evaluations: Points) -> None:
    """Loss per token against optimizer steps.

    Args:
        path: The PNG to write.
        title: Stands above the plot.
        losses: (step, loss of the step's examples before it).
        evaluations: (steps done, loss of an evaluation).
    """
    curves = [("training", losses, _line(0)), ("evaluation", evaluations, _marks(1))]
    _plot(path, title, "loss per token (nats)", "upper right", curves)


def _line(place: int) -> dict[str, Any]:
    return {"color": _COLOURS[place % len(_COLOURS)], "linewidth": 1.6}


def _marks(place: int) -> dict[str, Any]:
    return {"color": _COLOURS[place % len(_COLOURS)], "linewidth": 1.2, "marker": "o"}


def _plot(
    path: Path,
    title: str,
    label: str,
    legend: Literal["lower right", "upper right"],
    curves: Sequence[tuple[str, Points, dict[str, Any]]],
) -> None:
    # the object interface needs no display and leaves pyplot's global state alone
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.0), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for name, points, style in curves:
        if points:
            axes.plot(*zip(*points, strict=True), label=name, **style)
    axes.set(title=title, xlabel="update step", ylabel=label)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if any(points for _, points, _ in curves):
        axes.legend(frameon=False, loc=legend)
    figure.savefig(path)
