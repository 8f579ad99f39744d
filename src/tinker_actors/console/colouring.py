"""How tokens are coloured by what they carry: grounds with letters of their own, for light and dark terminals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

from rich.text import Text

Colouring: TypeAlias = Literal["logprob", "advantage", "mask"]
COLOURINGS: tuple[Colouring, ...] = get_args(Colouring)

OBSERVED = "dim"
TRAINED, UNTRAINED = "#000000 on #a6dba0", "#000000 on #c8c8c8"

# from the likeliest down: a sequential scale that the colour-blind can order
_CHANCES = (0.9, 0.5, 0.2, 0.05)
_BY_CHANCE = (
    "#000000 on #ffffcc",
    "#000000 on #a1dab4",
    "#000000 on #41b6c4",
    "#000000 on #2c7fb8",
    "#ffffff on #253494",
)

# from the most disfavoured to the most favoured
_BY_ADVANTAGE = (
    "#000000 on #e66101",
    "#000000 on #fdae61",
    "#000000 on #fee0b6",
    "#000000 on #c8c8c8",
    "#000000 on #d1e5f0",
    "#000000 on #6baed6",
    "#ffffff on #2166ac",
)


def logprob_style(logprob: float) -> str:
    """The style of a token by its natural log-prob."""
    chance = math.exp(min(logprob, 0.0))
    return _BY_CHANCE[next((place for place, least in enumerate(_CHANCES) if chance >= least), len(_CHANCES))]


def advantage_style(advantage: float, largest: float) -> str:
    """The style of a token by its advantage.

    Args:
        advantage: The token's.
        largest: The largest magnitude among those that are shown together.
    """
    if advantage == 0 or largest == 0:
        return _BY_ADVANTAGE[3]
    third = min(math.ceil(3 * abs(advantage) / largest), 3)
    return _BY_ADVANTAGE[3 + (third if advantage > 0 else -third)]


def legend(colouring: Colouring, largest: float) -> Text:
    """What the colours mean, on a line."""
    match colouring:
        case "logprob":
            names = [f"p ≥ {least:g}" for least in _CHANCES] + [f"p < {_CHANCES[-1]:g}"]
            return _legend("log-prob", list(zip(names, _BY_CHANCE, strict=True)))
        case "advantage":
            steps = [f"{largest * third / 3:+.2g}" for third in (-3, -2, -1)]
            more = [f"{largest * third / 3:+.2g}" for third in (1, 2, 3)]
            entries = list(zip([*steps, "0", *more], _BY_ADVANTAGE, strict=True))
            return _legend("advantage", entries if largest else entries[3:4])
        case "mask":
            return _legend("mask", [("trained on", TRAINED), ("sampled, not trained on", UNTRAINED)])


def _legend(title: str, entries: Sequence[tuple[str, str]]) -> Text:
    text = Text(f"{title} ")
    for name, style in entries:
        text.append(f" {name} ", style)
    return text.append("  ").append("observed", OBSERVED)
