"""How the measures of each kind of job are shown: rewards of RL, losses of supervised fine-tuning."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

_NOISE = 1e-10
"""A KL of less, half the mean square of what log-probs differ by, is float32 rounding: they agree to 1e-5."""

_OUTCOMES = {"win": "won", "draw": "drawn", "loss": "lost"}


def counted(number: int, word: str) -> str:
    """How many there are of what.

    >>> counted(1, "prompt"), counted(2, "prompt"), counted(2, "reply")
    ('1 prompt', '2 prompts', '2 replies')
    """
    plural = f"{word[:-1]}ies" if word.endswith("y") else f"{word}s"
    return f"{number} {word if number == 1 else plural}"


def measure(metrics: Mapping[str, float]) -> tuple[str, float]:
    """What a step is judged by, with its name."""
    name = "reward" if "reward" in metrics else "loss"
    return name, metrics[name]


def by_policy(metrics: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """The numbers `policy/NAME/KEY` by name and key; empty for the run of a single policy."""
    found: dict[str, dict[str, float]] = {}
    for key, value in metrics.items():
        if key.startswith("policy/"):
            _, policy, name = key.split("/", 2)
            found.setdefault(policy, {})[name] = value
    return found


def measures(metrics: Mapping[str, float]) -> dict[str, float]:
    """What is drawn of a step, by the titles of its curves: one for every policy where several learn."""
    own = by_policy(metrics)
    if len(own) > 1:
        return {f"{curve_title('reward')} of {policy}": numbers["reward"] for policy, numbers in own.items()}
    name, value = measure(metrics)
    return {curve_title(name): value}


def outcomes(metrics: Mapping[str, float]) -> dict[str, str]:
    """How games went, by seat, such as `50 % won, 20 % drawn, 30 % lost`; empty where nobody wins or loses."""
    seats = [key.partition("/")[2] for key in metrics if key.startswith("win/")]
    if not any(metrics[f"{name}/{seat}"] for seat in seats for name in ("win", "loss")):
        return {}
    return {seat: _shares({name: metrics[f"{name}/{seat}"] for name in _OUTCOMES}) for seat in seats}


def curve_title(name: str) -> str:
    """What stands above the curve of a measure."""
    return "mean episode reward" if name == "reward" else "loss per token"


def step_line(metrics: Mapping[str, float]) -> str:
    """A step's numbers as a line of a log."""
    name, value = measure(metrics)
    last = " ".join(_last(name, metrics))
    own = by_policy(metrics)
    each = ", ".join(f"{policy} {numbers['reward']:.3f}" for policy, numbers in own.items())
    return (
        f"{name} {each if len(own) > 1 else f'{value:.3f}'}  tokens/s {metrics['tokens_per_second']:.0f}  "
        f"grad {metrics.get('grad_norm', math.nan):.3g}  {last}  {metrics['seconds']:.2f} s"
    )


def evaluation_line(name: str, value: float, metrics: Mapping[str, float]) -> str:
    """An evaluation's numbers as a part of a line."""
    own = by_policy(metrics)
    each = [f"{policy} {numbers['reward']:.3f}" for policy, numbers in own.items()] if len(own) > 1 else []
    games = [f"{seat} {text}" for seat, text in outcomes(metrics).items()]
    return "; ".join([f"{name} {value:.3f}", *each, *games])


def step_numbers(metrics: Mapping[str, float], evaluations: Sequence[float]) -> dict[str, str]:
    """A step's numbers by their titles, for a table."""
    name, value = measure(metrics)
    last = _last(name, metrics)
    return {
        name: f"{value:.3f}",
        "evaluation": " → ".join(f"{entry:.2f}" for entry in evaluations[-4:]),
        "tokens/s": f"{metrics['tokens_per_second']:.0f}",
        "grad norm": f"{metrics.get('grad_norm', math.nan):.3g}",
        last[0]: last[1],
        "s/step": f"{metrics['seconds']:.2f}",
    }


def policy_rows(metrics: Mapping[str, float]) -> list[dict[str, str]]:
    """A row of a table for each of several policies; none for a single one."""
    own = by_policy(metrics)
    if len(own) < 2:
        return []
    return [
        {
            "policy": policy,
            "reward": f"{numbers['reward']:.3f}",
            "games": _shares(numbers) if numbers.get("win") or numbers.get("loss") else "",
            "grad norm": f"{numbers.get('grad_norm', math.nan):.3g}",
            "kl": _divergence(numbers.get("kl_reference", numbers["kl"])),
        }
        for policy, numbers in own.items()
    ]


def _last(name: str, metrics: Mapping[str, float]) -> tuple[str, str]:
    """What is watched beside the measure, with its title: how far a policy is from its reference, if it has one."""
    if name == "loss":
        return "epoch", f"{metrics['epoch']:.2f}"
    if "kl_reference" in metrics:
        return "kl to reference", _divergence(metrics["kl_reference"])
    return "kl", _divergence(metrics["kl"])


def _divergence(value: float) -> str:
    return "0" if abs(value) < _NOISE else f"{value:.2g}"


def _shares(found: Mapping[str, float]) -> str:
    return ", ".join(f"{found[name]:.0%} {word}".replace("%", " %") for name, word in _OUTCOMES.items())
