"""How the measures of each kind of job are shown: rewards of RL, losses of supervised fine-tuning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def measure(metrics: Mapping[str, float]) -> tuple[str, float]:
    """What a step is judged by, with its name."""
    name = "reward" if "reward" in metrics else "loss"
    return name, metrics[name]


def curve_title(name: str) -> str:
    """What stands above the curve of a measure."""
    return "mean episode reward" if name == "reward" else "loss per token"


def step_line(metrics: Mapping[str, float]) -> str:
    """A step's numbers as a line of a log."""
    name, value = measure(metrics)
    last = f"kl {metrics['kl']:.2g}" if name == "reward" else f"epoch {metrics['epoch']:.2f}"
    return (
        f"{name} {value:.3f}  tokens/s {metrics['tokens_per_second']:.0f}  grad {metrics['grad_norm']:.3g}  "
        f"{last}  {metrics['seconds']:.2f} s"
    )


def step_numbers(metrics: Mapping[str, float], evaluations: Sequence[float]) -> dict[str, str]:
    """A step's numbers by their titles, for a table."""
    name, value = measure(metrics)
    last = ("kl", f"{metrics['kl']:.2g}") if name == "reward" else ("epoch", f"{metrics['epoch']:.2f}")
    return {
        name: f"{value:.3f}",
        "evaluation": " → ".join(f"{entry:.2f}" for entry in evaluations[-4:]),
        "tokens/s": f"{metrics['tokens_per_second']:.0f}",
        "grad norm": f"{metrics['grad_norm']:.3g}",
        last[0]: last[1],
        "s/step": f"{metrics['seconds']:.2f}",
    }
