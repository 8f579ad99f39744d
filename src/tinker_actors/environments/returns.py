"""What the methods of an environment returned: checked, by seat, with errors that say what would be right."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, cast

from tinker_actors.data import Message
from tinker_actors.environments.environment import Environment, Step, check_limits
from tinker_actors.environments.rules import TurnOrder, check_rules
from tinker_actors.errors import EpisodeError


class WrongReturnError(EpisodeError, TypeError):
    """A method of an environment returned what can't be used; says what and what would be right."""


@dataclass(slots=True)
class Outcome:
    """A checked `Step`, by seat. Not frozen: one is made in every turn, and a frozen one takes three times as long.

    Attributes:
        observations: Messages per seat that acts next; empty if the episode is over.
        rewards: Per rewarded seat.
        terminated: As in `Step`.
        truncated: As in `Step`.
        metrics: As in `Step`.
    """

    observations: Mapping[str, tuple[Message, ...]]
    rewards: Mapping[str, float]
    terminated: bool
    truncated: bool
    metrics: Mapping[str, float]


class Returns:
    """Checks what one instance returns in one episode.

    Args:
        environment: The instance.

    Raises:
        ConfigError: What it declares can't be used.
    """

    def __init__(self, environment: Environment) -> None:
        self.name = type(environment).__name__
        check_limits(self.name, environment.seats, environment.max_turns)
        check_rules(self.name, environment.seats, environment.turn_order, environment.teams, environment.forfeit_rule)
        self.seats = environment.seats
        self.first = next(iter(self.seats))
        self._known = frozenset(self.seats)
        self._order = environment.turn_order if len(self.seats) > 1 else TurnOrder.FREE
        self._teams = environment.teams
        self._free = self._order is TurnOrder.FREE and not self._teams
        self._round = 0  # how often seats have been asked to act

    def reset(self, given: Any) -> Mapping[str, tuple[Message, ...]]:
        """The first observations.

        Raises:
            WrongReturnError: There is none, or something else.
        """
        if given is None:
            raise WrongReturnError(f"{self.name}.reset returned None; {self._observation_needed()} is needed")
        return self._observations("reset", given)

    def step(self, given: Any) -> Outcome:
        """A step.

        Raises:
            WrongReturnError: It isn't a `Step` that can be used.
        """
        if not isinstance(given, Step):
            raise WrongReturnError(
                f"{self.name}.step returned {shown(given)}; a Step is needed, such as Step(reward=1.0, terminated=True)"
            )
        terminated, truncated = bool(given.terminated), bool(given.truncated)
        over = terminated or truncated
        if given.observation is None and not over:
            raise WrongReturnError(
                f"{self.name}.step returned a Step without observation that is neither terminated nor truncated; "
                f"{self._observation_needed()} is needed to go on, terminated=True to end"
            )
        reward, metrics = given.reward, given.metrics
        return Outcome(
            {} if over else self._observations("step", given.observation),
            {} if type(reward) is float and reward == 0.0 else self._rewards(reward),
            terminated,
            truncated,
            self._metrics(metrics) if metrics else {},
        )

    def forfeit(self, given: Any) -> Mapping[str, float] | None:
        """What `forfeit` returned.

        Raises:
            WrongReturnError: It is neither None nor rewards.
        """
        if given is None:
            return None
        if not isinstance(given, Mapping):
            raise WrongReturnError(
                f"{self.name}.forfeit returned {shown(given)}; None is needed to drop the episode, or rewards by "
                f"seat, such as {{{self.first!r}: 1.0}}"
            )
        return self._rewards_by_seat("forfeit", cast("Mapping[Any, Any]", given))

    def _observations(self, method: str, given: Any) -> Mapping[str, tuple[Message, ...]]:
        if self._free and type(given) is dict and len(cast("dict[Any, Any]", given)) == 1:
            # the hot path: one seat acts
            ((seat, observation),) = cast("dict[Any, Any]", given).items()
            if seat in self._known and type(observation) is str:
                return {seat: (Message(role="user", content=observation),)}
        # the plain dict first: asking an abstract class is slow
        if type(given) is not dict and not isinstance(given, Mapping):
            return self._unnamed(method, given)
        by_seat = cast("Mapping[Any, Any]", given)
        if not by_seat:
            raise WrongReturnError(
                f"{self.name}.{method} returned an empty mapping of observations, so that nobody would act; at least "
                "one seat is needed to go on, terminated=True to end"
            )
        if self._teams:
            by_seat = {member: value for name, value in by_seat.items() for member in self._teams.get(name, (name,))}
        self._check_seats(method, "observations", by_seat)
        if self._order is not TurnOrder.FREE:
            self._check_order(method, by_seat)
        self._round += 1
        # In the order of `seats`, whatever order the mapping has, so that nothing depends on it.
        return {seat: self._messages(method, by_seat[seat]) for seat in self.seats if seat in by_seat}

    def _unnamed(self, method: str, given: Any) -> Mapping[str, tuple[Message, ...]]:
        """An observation that names no seat, for those that act by the turn order."""
        if len(self.seats) == 1:
            seats = self.seats
        elif self._order is TurnOrder.ROUND_ROBIN:
            seats = (self._next,)
        elif self._order is TurnOrder.SIMULTANEOUS:
            seats = self.seats
        else:
            raise WrongReturnError(
                f"{self.name}.{method} returned {shown(given)} as observation; with seats {self.seats} "
                f"{self._observation_needed()} is needed"
            )
        self._round += 1
        return dict.fromkeys(seats, self._messages(method, given))

    @property
    def _next(self) -> str:
        """Whose turn it is where seats act in turn."""
        return self.seats[self._round % len(self.seats)]

    def _check_order(self, method: str, by_seat: Mapping[Any, Any]) -> None:
        if self._order is TurnOrder.SIMULTANEOUS:
            fits, needed = len(by_seat) == len(self.seats), f"all of {list(self.seats)} act in every turn"
        elif self._order is TurnOrder.ROUND_ROBIN:
            fits, needed = set(by_seat) == {self._next}, f"it is the turn of {self._next!r} alone"
        else:
            fits, needed = len(by_seat) == 1, "one seat acts at a time"
        if not fits:
            raise WrongReturnError(
                f"{self.name}.{method} returned observations for {list(by_seat)}; with turn_order "
                f"{self._order.value!r} {needed}"
            )

    def _messages(self, method: str, given: Any) -> tuple[Message, ...]:
        if isinstance(given, str):
            return (Message(role="user", content=given),)
        if isinstance(given, Message):
            return (given,)
        if isinstance(given, Sequence) and given:
            messages = tuple(cast("Sequence[Any]", given))
            if all(isinstance(message, Message) for message in messages):
                return messages
        raise WrongReturnError(
            f"{self.name}.{method} returned {shown(given)} as observation; text, a Message or a non-empty sequence "
            "of Messages is needed"
        )

    def _rewards(self, given: Any) -> Mapping[str, float]:
        if type(given) is not dict and not isinstance(given, Mapping):
            reward = self._reward("step", self.first, given)
            if len(self.seats) == 1:
                return {self.first: reward} if reward else {}
            if reward:
                raise WrongReturnError(
                    f"{self.name}.step returned reward {given!r}; with seats {self.seats} a mapping by seat is needed, "
                    f"such as {{{self.first!r}: {given!r}}}"
                )
            return {}
        return self._rewards_by_seat("step", cast("Mapping[Any, Any]", given))

    def _rewards_by_seat(self, method: str, given: Mapping[Any, Any]) -> Mapping[str, float]:
        if not self._teams:
            self._check_seats(method, "rewards", given)
            return {seat: self._reward(method, seat, value) for seat, value in given.items()}
        found: dict[Any, float] = {}
        for name, value in given.items():
            for seat in self._teams.get(name, (name,)):
                found[seat] = found.get(seat, 0.0) + self._reward(method, name, value)
        self._check_seats(method, "rewards", found)
        return found

    def _reward(self, method: str, seat: str, value: Any) -> float:
        if not isinstance(value, float | Real) or not math.isfinite(value):
            raise WrongReturnError(
                f"{self.name}.{method} returned reward {shown(value)} for seat {seat!r}; a finite number is needed"
            )
        return float(value)

    def _metrics(self, given: Any) -> Mapping[str, float]:
        if not isinstance(given, Mapping):
            raise WrongReturnError(f"{self.name}.step returned metrics {shown(given)}; a mapping of numbers is needed")
        checked: dict[str, float] = {}
        for key, value in cast("Mapping[Any, Any]", given).items():
            if not isinstance(key, str) or not isinstance(value, Real) or not math.isfinite(value):
                raise WrongReturnError(
                    f"{self.name}.step returned metric {key!r}: {shown(value)}; a name and a finite number are needed"
                )
            checked[key] = float(value)
        return checked

    def _check_seats(self, method: str, field: str, by_seat: Mapping[Any, Any]) -> None:
        if by_seat.keys() <= self._known:
            return
        if strangers := [seat for seat in by_seat if seat not in self.seats]:
            teams = f" and its teams {list(self._teams)}" if self._teams else ""
            raise WrongReturnError(
                f"{self.name}.{method} returned {field} for seats {strangers}; its seats are {list(self.seats)}{teams}"
            )

    def _observation_needed(self) -> str:
        if len(self.seats) == 1:
            return "an observation (text, a Message or several)"
        return f"a mapping of observations by acting seat, such as {{{self.first!r}: '...'}},"


def shown(value: object) -> str:
    """A value and its type, cut to a line."""
    text = repr(value)
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({type(value).__name__})"
