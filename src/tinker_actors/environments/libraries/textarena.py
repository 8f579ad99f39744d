"""Games of TextArena, one seat for each player: `textarena:TicTacToe-v0`."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np

from tinker_actors.environments.environment import Step
from tinker_actors.environments.libraries.library import LibraryEnvironment, required, unknown

required("textarena", "textarena")

import textarena  # noqa: E402
from textarena.envs.registration import ENV_REGISTRY  # noqa: E402

_MOST_PLAYERS = 15


class TextArenaEnvironment(LibraryEnvironment):
    """Wraps a TextArena game. Its rules say what an illegal move costs; those end up in the metric `illegal_moves`.

    A seat is shown what is new to it. Games draw from Python's and NumPy's global generators; each episode gets states
    of its own for them, so that equal seeds give equal games however many are played at once.

    Args:
        environment: What `textarena.make` returns.
        players: How many play; None for the smallest number that the game takes.
        options: As `LibraryEnvironment` takes them.
    """

    library: ClassVar[str] = "textarena"

    def __init__(self, environment: textarena.Env, *, players: int | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.wrapped = environment
        self._luck = _OwnLuck()
        self._players = players or self._fewest()
        self.seats = tuple(f"player_{number}" for number in range(self._players))

    @classmethod
    def opened(cls, target: str, arguments: Mapping[str, Any]) -> textarena.Env:
        """Make a registered game."""
        if target not in ENV_REGISTRY:
            raise unknown("textarena", target, ENV_REGISTRY)
        return textarena.make(target, **arguments)

    def found_out(self) -> Mapping[str, Any]:
        """How many play."""
        return {"players": self._players}

    def _fewest(self) -> int:
        refused = ""
        for players in range(1, _MOST_PLAYERS + 1):
            # games say how many may play by refusing other numbers
            try:
                with self._luck.drawn():
                    self.wrapped.reset(num_players=players, seed=0)
            except AssertionError as error:
                refused = str(error)
            else:
                return players
        raise ValueError(f"the game takes no number of players from 1 to {_MOST_PLAYERS}: {refused}")

    def reset(self, seed: int) -> Any:
        """Begin a game."""
        self._luck.seed(self.library_seed(seed))
        self._read: dict[str, str] = {}
        with self._luck.drawn():
            self.wrapped.reset(num_players=self._players, seed=self.library_seed(seed))
            return self._next()

    def step(self, action: Any) -> Step:
        """Make the move of the seat whose turn it is."""
        text = action if isinstance(action, str) else next(iter(action.values()))
        with self._luck.drawn():
            done, _ = self.wrapped.step(action=text)
            if not done:
                return Step(observation=self._next())
            rewards, infos = self.wrapped.close()
        earned = {f"player_{number}": float(reward) for number, reward in (rewards or {}).items()}
        illegal = sum(bool(info.get("invalid_move")) for info in infos.values())
        return Step(
            reward=earned if len(self.seats) > 1 else earned.get(next(iter(self.seats)), 0.0),
            terminated=True,
            metrics={"illegal_moves": float(illegal)},
        )

    def _next(self) -> Any:
        """What the seat that moves next hasn't read yet."""
        player, seen = self.wrapped.get_observation()
        seat = f"player_{player}"
        whole = seen if isinstance(seen, str) else "\n".join(str(text) for _, text, _ in seen)
        before = self._read.get(seat, "")
        self._read[seat] = whole
        new = (whole.removeprefix(before) if isinstance(seen, str) else whole).strip() or "It is your move."
        return new if len(self.seats) == 1 else {seat: new}


class _OwnLuck:
    """Keeps the global generators' states of one game apart from everyone else's."""

    _one_at_a_time = threading.Lock()

    def __init__(self) -> None:
        self.seed(0)

    def seed(self, seed: int) -> None:
        self._states: tuple[Any, Any] = random.Random(seed).getstate(), np.random.RandomState(seed).get_state()

    @contextmanager
    def drawn(self) -> Iterator[None]:
        """While this lasts, the global generators are this game's."""
        with self._one_at_a_time:
            outside = random.getstate(), np.random.get_state()
            self._put(self._states)
            try:
                yield
            finally:
                self._states = random.getstate(), np.random.get_state()
                self._put(outside)

    @staticmethod
    def _put(states: tuple[Any, Any]) -> None:
        random.setstate(states[0])
        np.random.set_state(states[1])
