"""Gomoku on a small board for two seats, and a scripted player that sees one move ahead."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from itertools import product

from tinker_actors.data import Message
from tinker_actors.environments import Environment, Forfeit, Step, TurnOrder
from tinker_actors.errors import ConfigError

NAMES = "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLM"
"""What free squares are called, row by row; the stones' letters X and O are not among them."""
LARGEST, LARGEST_IN_LETTERS = 7, 5
VIEWS = ("board", "stones")


class Gomoku(Environment):
    """Each seat sees the board as its own: `X` is always the one who looks. Who begins comes from the task's seed.

    Args:
        size: Rows and columns of the board.
        line: How many stones in a row win.
        view: How a seat sees the board: a `board` of rows, free squares by their names, or the `stones` alone, such as
            `agM`, its own by their names and the other's in capitals: shorter, and easier for tiny models. Boards of
            more than 5 by 5 have more squares than there are letters, and need `board`.
        skill: The share of demonstrated moves that are those of `scripted` at its best; the others are any free square.
        explain: Whether a seat's first observation begins with the rules.
    """

    seats = ("player", "opponent")
    turn_order = TurnOrder.TURN_BASED
    forfeit_rule = Forfeit.LOSS

    def __init__(
        self, size: int = 5, line: int = 4, view: str = "board", skill: float = 0.3, explain: bool = False
    ) -> None:
        if not 2 <= line <= size <= LARGEST:
            raise ConfigError(f"size is {size} and line is {line}; 2 <= line <= size <= {LARGEST} is needed")
        if view not in VIEWS:
            raise ConfigError(f"view is {view!r}; one of {', '.join(VIEWS)} is needed")
        if view == "stones" and size > LARGEST_IN_LETTERS:
            raise ConfigError(
                f"view is 'stones' and size is {size}; at most {LARGEST_IN_LETTERS} is needed, or 'board'"
            )
        if not 0 <= skill <= 1:
            raise ConfigError(f"skill is {skill}; a share from 0 to 1 is needed")
        self.size, self.line, self.view, self.skill, self.explain = size, line, view, skill, explain
        self.max_turns = size * size

    def reset(self, seed: int) -> dict[str, str]:
        """An empty board; the seed says who begins."""
        self.board: dict[str, str] = dict.fromkeys(NAMES[: self.size**2], "")  # who stands on each square
        self.shown: set[str] = set()
        return self._observation(self.seats[random.Random(seed).randrange(2)])

    def step(self, actions: dict[str, str]) -> Step:
        """Place the stone. A line wins, a full board is a draw, and what is no free square loses."""
        ((seat, action),) = actions.items()
        other = self.seats[seat == self.seats[0]]
        square = action.strip()
        if self.board.get(square) != "":
            return Step(reward={seat: -1.0, other: 1.0}, terminated=True, metrics={"illegal": 1.0, "draw": 0.0})
        won = completes(self._view(seat), square, "X", self.line)
        self.board[square] = seat
        if won:
            return Step(reward={seat: 1.0, other: -1.0}, terminated=True, metrics={"illegal": 0.0, "draw": 0.0})
        if all(self.board.values()):
            return Step(reward={seat: 0.0, other: 0.0}, terminated=True, metrics={"illegal": 0.0, "draw": 1.0})
        return Step(observation=self._observation(other))

    def demonstrate(self, seat: str) -> str:
        """With probability `skill` the best move that is seen one ahead, else any free square."""
        return move(self._view(seat), self.line, self.skill, self.rng)

    def _view(self, seat: str) -> str:
        """The squares as a seat sees them."""
        return "".join(name if not owner else "X" if owner == seat else "O" for name, owner in self.board.items())

    def _observation(self, seat: str) -> dict[str, str]:
        rules = self._rules() if self.explain and seat not in self.shown else ""
        self.shown.add(seat)
        return {seat: rules + written(self._view(seat), self.view)}

    def _rules(self) -> str:
        return (
            f"Gomoku on {self.size} by {self.size}, squares named row by row from {NAMES[0]}. On the board X is yours "
            f"and O your opponent's; in a list of stones capitals are your opponent's. {self.line} in a row, straight "
            f"or diagonal, win. Answer with the name of a free square{RULED}"
        )


RULED = ".\n"
"""How the rules end."""


def scripted(messages: Sequence[Message], rng: random.Random, size: int = 5, line: int = 4, skill: float = 1.0) -> str:
    """Plays a seat: with probability `skill` the best move that is seen one ahead, else any free square."""
    return move(read(messages[-1].content, size), line, skill, rng)


def written(squares: str, view: str) -> str:
    """The squares as an observation.

    >>> written("XbcO", "board"), written("XbcO", "stones")
    ('Xb\\ncO', 'aD')
    """
    if view == "board":
        size = int(len(squares) ** 0.5)
        return "\n".join(squares[at : at + size] for at in range(0, len(squares), size))
    named = {"X": NAMES, "O": NAMES.upper()}
    return "".join(named[seen][at] for stone in "XO" for at, seen in enumerate(squares) if seen == stone) or "-"


def read(observation: str, size: int) -> str:
    """The squares of an observation, after the rules where it begins with them.

    >>> read("Xb\\ncO", 2), read("aD", 2)
    ('XbcO', 'XbcO')
    """
    shown = observation.rpartition(RULED)[2]
    if "\n" in shown:
        return shown.replace("\n", "")
    return "".join("X" if name in shown else "O" if name.upper() in shown else name for name in NAMES[: size**2])


def move(view: str, line: int, skill: float, rng: random.Random) -> str:
    """With probability `skill` a square that wins, else one where the other would win; otherwise any free square."""
    free = [square for square in view if square not in "XO"]
    if rng.random() < skill:
        for stone in "XO":
            if winning := [square for square in free if completes(view, square, stone, line)]:
                return rng.choice(winning)
    return rng.choice(free)


def completes(view: str, square: str, stone: str, line: int) -> bool:
    """Whether a stone on a square makes a line with those that stand already."""
    place = view.index(square)
    return any(all(at == place or view[at] == stone for at in squares) for squares in lines(len(view), line)[place])


@functools.cache
def lines(squares: int, length: int) -> list[list[tuple[int, ...]]]:
    """For each square of a square board, numbered row by row, the lines of a length that it is on."""
    size = int(squares**0.5)
    through: list[list[tuple[int, ...]]] = [[] for _ in range(squares)]
    for (row, column), (down, right) in product(product(range(size), repeat=2), ((0, 1), (1, 0), (1, 1), (1, -1))):
        if 0 <= row + down * (length - 1) < size and 0 <= column + right * (length - 1) < size:
            line = tuple((row + down * n) * size + column + right * n for n in range(length))
            for square in line:
                through[square].append(line)
    return through
