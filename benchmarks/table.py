"""Rounds of measurements as rows, and rows as a table of medians, spreads and ratios."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """What one system showed in one case, in `unit`; `low` and `high` are the extremes of the rounds."""

    case: str
    system: str
    unit: str
    median: float
    low: float
    high: float


def summarise(case: str, system: str, unit: str, values: Sequence[float]) -> Row:
    """The row of one system's rounds."""
    return Row(case=case, system=system, unit=unit, median=statistics.median(values), low=min(values), high=max(values))


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median over the rounds of ours / theirs, which noise that lasts longer than a round leaves alone."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def render(rows: Iterable[Row], ratios: Mapping[tuple[str, str], float]) -> str:
    """A table in text; `ratios` maps (case, system) to ours / that system."""
    head = ("case", "system", "unit", "median", "low", "high", "ours/it")
    lines: list[tuple[str, ...]] = [head]
    last = ""
    for row in rows:
        ratio = ratios.get((row.case, row.system))
        numbers = (_number(value) for value in (row.median, row.low, row.high))
        case = row.case if row.case != last else ""
        last = row.case
        lines.append((case, row.system, row.unit, *numbers, "" if ratio is None else f"{ratio:.3g}"))
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    texts = [
        "  ".join(cell.ljust(width) if i < 3 else cell.rjust(width) for i, (cell, width) in enumerate(pairs)).rstrip()
        for pairs in (list(zip(line, widths, strict=True)) for line in lines)
    ]
    return "\n".join([texts[0], "-" * max(map(len, texts)), *texts[1:]])


def save(rows: Iterable[Row], path: Path) -> None:
    """Write the rows as a JSON list of objects."""
    path.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


def _number(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
