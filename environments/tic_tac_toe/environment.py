"""Tic-tac-toe for two seats, and the optimal player as a script."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence

from tinker_actors.data import Message
from tinker_actors.environments import Environment, Forfeit, Step, TurnOrder
from tinker_actors.errors import ConfigError

LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
FREE = "123456789"
THEIRS = "abcdefghi"
"""What the other's squares are called among the stones."""
VIEWS = ("board", "stones")
RULES = (
    "Tic-tac-toe: the squares are 1 to 9, row by row. On the board X is yours and O your opponent's; in a list of "
    "stones digits are yours and letters, a to i, your opponent's. Three in a row win. Answer with the digit of a free "
    "square.\n"
)


class TicTacToe(Environment):
    """Each seat sees the board as its own: `X` is always the one who looks. Who begins comes from the task's seed.

    Args:
        view: How a seat sees the board: a `board` of three rows, free squares by their digits, or the `stones` alone,
            such as `15i`, its own by their digits and the other's by letters: shorter, and easier for tiny models.
        skill: The share of demonstrated moves that are optimal; the others are any free square.
        explain: Whether a seat's first observation begins with the rules.
        opening: The most stones, up to four, that stand as a game begins, except in evaluations. How many (from none
            on) and where comes from the task's seed, so that the games of a group begin alike, and from positions
            that the players would not bring about themselves.
    """

    seats = ("player", "opponent")
    turn_order = TurnOrder.TURN_BASED
    forfeit_rule = Forfeit.LOSS
    max_turns = 9

    def __init__(self, view: str = "board", skill: float = 0.3, explain: bool = False, opening: int = 0) -> None:
        if view not in VIEWS:
            raise ConfigError(f"view is {view!r}; one of {', '.join(VIEWS)} is needed")
        if not 0 <= skill <= 1:
            raise ConfigError(f"skill is {skill}; a share from 0 to 1 is needed")
        if opening not in range(5):
            raise ConfigError(f"opening is {opening}; a number of stones from 0 to 4 is needed")
        self.view, self.skill, self.explain, self.opening = view, skill, explain, opening

    def reset(self, seed: int) -> dict[str, str]:
        """An empty board, or one with an opening; the seed says who begins, and which opening."""
        self.board: dict[str, str] = dict.fromkeys(FREE, "")  # who stands on each square
        self.shown: set[str] = set()
        drawn = random.Random(seed)
        seat = self.seats[drawn.randrange(2)]
        stones = 0 if self.evaluating else drawn.randint(0, self.opening)
        for number, square in enumerate(drawn.sample(FREE, stones)):
            self.board[square] = self.seats[(self.seats.index(seat) + stones - number) % 2]
        return self._observation(seat)

    def step(self, actions: dict[str, str]) -> Step:
        """Place the stone. A line wins, a full board is a draw, and what is no free square loses."""
        ((seat, action),) = actions.items()
        other = self.seats[seat == self.seats[0]]
        square = action.strip()
        if self.board.get(square) != "":
            return Step(reward={seat: -1.0, other: 1.0}, terminated=True, metrics={"illegal": 1.0, "draw": 0.0})
        self.board[square] = seat
        view = self._view(seat)
        if wins(view, "X"):
            return Step(reward={seat: 1.0, other: -1.0}, terminated=True, metrics={"illegal": 0.0, "draw": 0.0})
        if all(self.board.values()):
            return Step(reward={seat: 0.0, other: 0.0}, terminated=True, metrics={"illegal": 0.0, "draw": 1.0})
        return Step(observation=self._observation(other))

    def demonstrate(self, seat: str) -> str:
        """With probability `skill` an optimal move, else any free square."""
        view = self._view(seat)
        return self.rng.choice(best_moves(view) if self.rng.random() < self.skill else free(view))

    def _view(self, seat: str) -> str:
        """The nine squares as a seat sees them."""
        return "".join(square if not owner else "X" if owner == seat else "O" for square, owner in self.board.items())

    def _observation(self, seat: str) -> dict[str, str]:
        rules = RULES if self.explain and seat not in self.shown else ""
        self.shown.add(seat)
        return {seat: rules + written(self._view(seat), self.view)}


def optimal(messages: Sequence[Message], rng: random.Random) -> str:
    """Plays a seat: any of the moves that keep what the board is worth. It never loses."""
    return rng.choice(best_moves(read(messages[-1].content)))


def anything(messages: Sequence[Message], rng: random.Random) -> str:
    """Plays a seat: any free square."""
    return rng.choice(free(read(messages[-1].content)))


def written(squares: str, view: str) -> str:
    """The nine squares as an observation.

    >>> written("X234O678O", "stones")
    '1ei'
    """
    if view == "board":
        return "\n".join((squares[:3], squares[3:6], squares[6:]))
    named = {"X": FREE, "O": THEIRS}
    return "".join(named[seen][at] for stone in "XO" for at, seen in enumerate(squares) if seen == stone) or "-"


def read(observation: str) -> str:
    """The nine squares of an observation, after the rules where it begins with them.

    >>> read("1ei")
    'X234O678O'
    """
    shown = observation.removeprefix(RULES)
    if "\n" in shown:
        return shown.replace("\n", "")
    return "".join(
        "X" if own in shown else "O" if theirs in shown else own for own, theirs in zip(FREE, THEIRS, strict=True)
    )


def wins(view: str, stone: str) -> bool:
    """Whether a stone has three in a row."""
    return any(view[a] == view[b] == view[c] == stone for a, b, c in LINES)


def free(view: str) -> list[str]:
    """The free squares."""
    return [square for square in view if square not in "XO"]


@functools.cache
def value(view: str) -> int:
    """What X, who is to move, reaches with best play by both: 1, 0 or -1 (minimax)."""
    if wins(view, "O"):
        return -1
    return max((-value(after(view, square)) for square in free(view)), default=0)


def after(view: str, square: str) -> str:
    """The board after X takes a square, as the other one sees it."""
    return view.replace(square, "X").translate(SWAPPED)


SWAPPED = str.maketrans("XO", "OX")


def best_moves(view: str) -> list[str]:
    """All moves of X that keep the value of the board."""
    return [square for square in free(view) if -value(after(view, square)) == value(view)]
