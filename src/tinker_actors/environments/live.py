"""One environment during one episode: called the way it wants to be, checked in what it returns, closed once."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Protocol, cast

from tinker_actors.data import Message
from tinker_actors.environments.environment import Environment, Step, check_limits
from tinker_actors.environments.instances import Instance
from tinker_actors.environments.rules import Forfeit, TurnOrder, check_rules
from tinker_actors.errors import EpisodeError


class WrongReturnError(EpisodeError, TypeError):
    """A method of an environment returned what can't be used; says what and what would be right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A checked `Step`, by seat.

    Attributes:
        observations: Messages per seat that acts next; empty if the episode is over.
        rewards: Per rewarded seat.
        terminated: As in `Step`.
        truncated: As in `Step`.
        metrics: As in `Step`.
    """

    observations: dict[str, tuple[Message, ...]]
    rewards: dict[str, float]
    terminated: bool
    truncated: bool
    metrics: Mapping[str, float]


class Playable(Protocol):
    """What the coordinator plays: an environment during one episode, wherever it runs."""

    @property
    def name(self) -> str:
        """For error lines."""
        ...

    @property
    def seats(self) -> tuple[str, ...]:
        """The places that agents fill."""
        ...

    @property
    def max_turns(self) -> int:
        """How many steps an episode may take."""
        ...

    async def reset(self, seed: int) -> dict[str, tuple[Message, ...]]:
        """The first observations, by the seats that act first."""
        ...

    async def step(self, actions: Mapping[str, str]) -> Outcome:
        """Apply the actions of the seats that acted."""
        ...

    async def forfeit(self, failed: tuple[str, ...], rule: Forfeit | None) -> dict[str, float] | None:
        """What the failure of seats is worth, by seat; None to drop the episode."""
        ...

    async def close(self) -> None:
        """Release what it held; called once."""
        ...


class LiveEnvironment:
    """Drives one instance through one episode.

    Args:
        environment: A fresh instance, or one with how it is called and closed.
        luck: Seeds its `rng`.
        evaluating: Whether the episode belongs to an evaluation; otherwise what the instance says stays.
    """

    def __init__(self, environment: Environment | Instance, *, luck: int, evaluating: bool = False) -> None:
        self._instance = environment if isinstance(environment, Instance) else Instance.single(environment)
        environment = self._instance.environment
        self.name = type(environment).__name__
        check_limits(self.name, environment.seats, environment.max_turns)
        check_rules(self.name, environment.seats, environment.turn_order, environment.teams, environment.forfeit_rule)
        self.seats = environment.seats
        self._order = environment.turn_order if len(self.seats) > 1 else TurnOrder.FREE
        self._teams = environment.teams
        self._round = 0  # how often seats have been asked to act
        self.max_turns = environment.max_turns
        self._first = next(iter(self.seats))
        self._known = frozenset(self.seats)
        environment.rng = random.Random(luck)
        environment.evaluating = evaluating or environment.evaluating
        self._environment = environment
        self._closed = False

    @property
    def environment(self) -> type[Environment]:
        """The class of the instance."""
        return type(self._environment)

    async def reset(self, seed: int) -> dict[str, tuple[Message, ...]]:
        """The first observations, by the seats that act first.

        Raises:
            WrongReturnError: The environment returned none, or something else.
        """
        returned = await self._instance.reset(seed)
        if returned is None:
            raise WrongReturnError(f"{self.name}.reset returned None; {self._observation_needed()} is needed")
        return self._observations("reset", returned)

    async def step(self, actions: Mapping[str, str]) -> Outcome:
        """Apply the actions of the seats that acted.

        Raises:
            WrongReturnError: The environment didn't return a `Step` that can be used.
        """
        action = dict(actions) if len(self.seats) > 1 else actions[self._first]
        if not self._instance.direct:
            step = await self._instance.call(self._environment.step, action)
        else:  # the hot path, without a coroutine of its own
            step = self._environment.step(action)
            if not isinstance(step, Step) and hasattr(step, "__await__"):
                step = await step
        if not isinstance(step, Step):
            raise WrongReturnError(
                f"{self.name}.step returned {_shown(step)}; a Step is needed, such as Step(reward=1.0, terminated=True)"
            )
        over = bool(step.terminated or step.truncated)
        if step.observation is None and not over:
            raise WrongReturnError(
                f"{self.name}.step returned a Step without observation that is neither terminated nor truncated; "
                f"{self._observation_needed()} is needed to go on, terminated=True to end"
            )
        return Outcome(
            observations={} if over else self._observations("step", step.observation),
            rewards=self._rewards(step.reward),
            terminated=bool(step.terminated),
            truncated=bool(step.truncated),
            metrics=self._metrics(step.metrics),
        )

    async def forfeit(self, failed: tuple[str, ...], rule: Forfeit | None) -> dict[str, float] | None:
        """What the failure of seats is worth, by seat; None to drop the episode.

        Args:
            failed: The seats that failed.
            rule: The run's; None for the environment's own. A run that drops such episodes doesn't ask the environment.

        Raises:
            WrongReturnError: The environment returned neither None nor rewards.
        """
        if rule is Forfeit.DROP:
            return None
        returned = await self._instance.call(self._environment.forfeit, failed, rule or self._environment.forfeit_rule)
        if returned is None:
            return None
        if not isinstance(returned, Mapping):
            raise WrongReturnError(
                f"{self.name}.forfeit returned {_shown(returned)}; None is needed to drop the episode, or rewards by "
                f"seat, such as {{{self._first!r}: 1.0}}"
            )
        return self._rewards_by_seat("forfeit", cast("Mapping[Any, Any]", returned))

    async def demonstrate(self, seat: str) -> str:
        """A demonstration for the seat that is to act.

        Raises:
            ConfigError: The environment has none.
            WrongReturnError: It isn't a string.
        """
        args = (seat,) if len(self.seats) > 1 else ()
        text = await self._instance.call(self._environment.demonstrate, *args)
        if not isinstance(text, str):
            raise WrongReturnError(f"{self.name}.demonstrate returned {_shown(text)}; an action's text is needed")
        return text

    async def close(self) -> None:
        """Close the environment; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        await self._instance.end()

    def _observations(self, method: str, given: Any) -> dict[str, tuple[Message, ...]]:
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
        if len(by_seat) == 1:
            return {seat: self._messages(method, observation) for seat, observation in by_seat.items()}
        # In the order of `seats`, whatever order the mapping has, so that nothing depends on it.
        return {seat: self._messages(method, by_seat[seat]) for seat in self.seats if seat in by_seat}

    def _unnamed(self, method: str, given: Any) -> dict[str, tuple[Message, ...]]:
        """An observation that names no seat, for those that act by the turn order."""
        if len(self.seats) == 1:
            seats = self.seats
        elif self._order is TurnOrder.ROUND_ROBIN:
            seats = (self._next,)
        elif self._order is TurnOrder.SIMULTANEOUS:
            seats = self.seats
        else:
            raise WrongReturnError(
                f"{self.name}.{method} returned {_shown(given)} as observation; with seats {self.seats} "
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
            f"{self.name}.{method} returned {_shown(given)} as observation; text, a Message or a non-empty sequence "
            "of Messages is needed"
        )

    def _rewards(self, given: Any) -> dict[str, float]:
        if type(given) is not dict and not isinstance(given, Mapping):
            reward = self._reward("step", self._first, given)
            if len(self.seats) == 1:
                return {self._first: reward} if reward else {}
            if reward:
                raise WrongReturnError(
                    f"{self.name}.step returned reward {given!r}; with seats {self.seats} a mapping by seat is needed, "
                    f"such as {{{self._first!r}: {given!r}}}"
                )
            return {}
        return self._rewards_by_seat("step", cast("Mapping[Any, Any]", given))

    def _rewards_by_seat(self, method: str, given: Mapping[Any, Any]) -> dict[str, float]:
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
                f"{self.name}.{method} returned reward {_shown(value)} for seat {seat!r}; a finite number is needed"
            )
        return float(value)

    def _metrics(self, given: Any) -> Mapping[str, float]:
        if not given:
            return {}
        if not isinstance(given, Mapping):
            raise WrongReturnError(f"{self.name}.step returned metrics {_shown(given)}; a mapping of numbers is needed")
        checked: dict[str, float] = {}
        for key, value in cast("Mapping[Any, Any]", given).items():
            if not isinstance(key, str) or not isinstance(value, Real) or not math.isfinite(value):
                raise WrongReturnError(
                    f"{self.name}.step returned metric {key!r}: {_shown(value)}; a name and a finite number are needed"
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
        return f"a mapping of observations by acting seat, such as {{{self._first!r}: '...'}},"


def _shown(value: object) -> str:
    text = repr(value)
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({type(value).__name__})"
