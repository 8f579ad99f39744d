"""Actions that can't be taken: texts without an action, or moves that the rules don't allow now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from tinker_actors.errors import ConfigError

Kind = Literal["retry", "penalty", "forfeit"]


class IllegalActionError(ValueError):
    """An action that can't be taken; the message says to the seat why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IllegalRule:
    """What becomes of an action that can't be taken. It never reaches the library.

    Attributes:
        kind: `retry`: the seat is told why and acts again; after `retries` such answers in a row the next one loses.
            `penalty`: it is told why, pays `penalty` and acts again, as often as the turns allow. `forfeit`: it loses
            at once.
        penalty: What it costs; one that loses gets minus as much and every other seat plus as much.
        retries: As said.
    """

    kind: Kind = "retry"
    penalty: float = 1.0
    retries: int = 2

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ConfigError(f"option 'illegal' is {self.kind!r}; one of {', '.join(get_args(Kind))} is needed")
        if self.penalty < 0:
            raise ConfigError(f"option 'penalty' is {self.penalty!r}; a number of at least 0 is needed")
        if self.retries < 0:
            raise ConfigError(f"option 'retries' is {self.retries!r}; an integer of at least 0 is needed")


class Referee:
    """Counts the illegal actions of one episode.

    Attributes:
        refused: How many there were.
    """

    def __init__(self, rule: IllegalRule) -> None:
        self._rule = rule
        self._in_a_row: dict[str, int] = {}
        self.refused = 0

    def allow(self, seat: str) -> None:
        """The seat's action can be taken."""
        self._in_a_row.pop(seat, None)

    def refuse(self, seats: Iterable[str]) -> set[str]:
        """The actions of these seats can't be taken; which of them lose by it."""
        lost: set[str] = set()
        for seat in seats:
            self.refused += 1
            tries = self._in_a_row[seat] = self._in_a_row.get(seat, 0) + 1
            if self._rule.kind == "forfeit" or (self._rule.kind == "retry" and tries > self._rule.retries):
                lost.add(seat)
        return lost

    def rewards(self, refused: Iterable[str], lost: set[str], seats: Iterable[str]) -> Mapping[str, float]:
        """What that costs and earns, by seat."""
        penalty = self._rule.penalty
        if lost:
            return {seat: -penalty if seat in lost else penalty for seat in seats}
        return dict.fromkeys(refused, -penalty if self._rule.kind == "penalty" else 0.0)
