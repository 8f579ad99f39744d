"""`Environment`: what a user subclasses, and `Step`: what one of its steps returns.

A dozen lines make a new one:

>>> import random
>>> class Sum(Environment):
...     def reset(self, seed):
...         rng = random.Random(seed)
...         self.a, self.b = rng.randrange(10), rng.randrange(10)
...         return f"{self.a}+{self.b}="
...
...     def step(self, action):
...         return Step(reward=float(action.strip() == str(self.a + self.b)), terminated=True)
>>> environment = Sum()
>>> environment.reset(seed=1)
'2+9='
>>> environment.step("11").reward
1.0
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from tinker_actors.data import Message, ToolList
from tinker_actors.environments.rules import Forfeit, TurnOrder, check_rules, rewards_of
from tinker_actors.errors import ConfigError

Observation = str | Message | Sequence[Message]
"""What a seat sees: text (a user message), a message, or several."""

Isolation = Literal["inline", "thread", "process"]
"""Where an environment's methods run: on the event loop, in a thread of each instance, or in another process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What an action led to.

    In an environment of one seat, observation and reward are plain values; in one of several they are mappings by
    seat.

    Attributes:
        observation: What is to be answered next; None if the episode is over. The keys of a mapping say which seats
            act next, as far as `turn_order` leaves that open; a team's name stands for each of its seats.
        reward: What the action earned. A seat that isn't acting may be rewarded too: that belongs to its last turn. A
            team's reward goes to each of its seats.
        terminated: Whether the environment reached its own end.
        truncated: Whether the environment cut the episode short, at a limit of its own.
        metrics: Named numbers to record with the episode; a later value replaces an earlier one.
    """

    observation: Observation | Mapping[str, Observation] | None = None
    reward: float | Mapping[str, float] = 0.0
    terminated: bool = False
    truncated: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])


class Environment(ABC):
    """One episode's world. An instance plays one episode: `reset`, then `step` until a step says that it is over.
    One of a `reusable` class may play others after it.

    `reset` and `step` may be plain or `async`. Plain ones run on the event loop, where they must be quick; set
    `blocking = True` for those that wait or compute for long, and all calls of the instance run in a thread of its
    own. Constructor keywords are the environment's options.

    Attributes:
        seats: The places that agents fill. With several, observations, actions and rewards are mappings by seat.
        max_turns: How many steps an episode may take; one that isn't over by then ends truncated.
        turn_order: Who acts next, where there are several seats; by default whomever the observations name.
        teams: Seats that play together, by team; a team's name may stand for them in observations and rewards.
        forfeit_rule: What becomes of an episode in which a seat fails. A run may set another rule.
        blocking: Whether plain methods may block.
        isolation: Where the methods run, if a run's configuration doesn't say; None for "thread" if they block, else
            "inline".
        reusable: Whether `reset` may be called again once an episode is over, so that instances play many of them.
            `close` is then called once, after the last.
        reset_many: A static or class method from instances and their seeds to their first observations, where
            resetting many at once is cheaper than one after the other; plain or `async`. It resets those whose episodes
            begin at the same time; an exception among what it returns fails that one's episode, one that it raises
            fails them all.
        luck: This episode's own seed, set before `reset`: it differs between the episodes of a group and depends only
            on the run's seed. What the group must share comes from `reset`'s seed instead.
        evaluating: Whether this episode belongs to an evaluation, set before `reset`. An environment over a data set
            keeps a part of it for those.
    """

    __blocking_advice__: ClassVar[str] = (
        "its plain methods run on the event loop: `blocking = True` on the class, or environment.isolation 'thread', "
        "gives them a thread"
    )

    seats: tuple[str, ...] = ("agent",)
    max_turns: int = 32
    turn_order: TurnOrder = TurnOrder.FREE
    teams: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    forfeit_rule: Forfeit = Forfeit.DROP
    blocking: ClassVar[bool] = False
    isolation: ClassVar[Isolation | None] = None
    reusable: ClassVar[bool] = False
    reset_many: ClassVar[Callable[..., Any] | None] = None
    luck: int
    evaluating: bool = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_limits(cls.__name__, cls.seats, cls.max_turns)
        check_rules(cls.__name__, cls.seats, cls.turn_order, cls.teams, cls.forfeit_rule)
        if not isinstance(cls.__dict__.get("reset_many"), (staticmethod, classmethod, type(None))):
            raise ConfigError(f"{cls.__name__}.reset_many is a method of an instance; a @staticmethod is needed")

    @cached_property
    def rng(self) -> random.Random:
        """The episode's own luck, seeded by `luck`; made when it is first used, because to seed one takes a while."""
        return random.Random(self.luck)

    @abstractmethod
    def reset(self, seed: int, /) -> Any:
        """Begin the episode of the task that `seed` names; every episode of a group gets the same one.

        Returns:
            The first observation, or a mapping of them by seat.
        """

    @abstractmethod
    def step(self, action: Any, /) -> Any:
        """Answer an action.

        Args:
            action: The text of the only seat; a mapping of texts by acting seat if there are several seats.

        Returns:
            A `Step`.
        """

    def demonstrate(self, *args: Any, **kwargs: Any) -> Any:
        """An action that would do in the present state, for supervised warm-up; optional and allowed to be noisy.

        Overridden as `demonstrate(self) -> str`, or as `demonstrate(self, seat) -> str` if there are several seats.
        Luck comes from `self.rng`.
        """
        raise ConfigError(
            f"{type(self).__name__} has no demonstrations; define demonstrate(self) to return an action's text"
        )

    def tool_list(self, *args: Any) -> ToolList | None:
        """The tools that the policy is told of, through its chat template; asked once, after `reset`.

        Overridden as `tool_list(self)`, or as `tool_list(self, seat)` if there are several seats; may be `async`.
        """
        return None

    def forfeit(self, failed: tuple[str, ...], rule: Forfeit, /) -> Any:
        """What a failure of seats is worth, in the present state; may be overridden, and `async`. It ends the episode.

        Args:
            failed: The seats whose agents raised, were cancelled or didn't answer in time; never all of them.
            rule: The one that applies: `forfeit_rule`, or what the run sets in its place.

        Returns:
            Rewards by seat or team, which come on top of those before; or None to drop the episode. As it stands it
            gives what `rule` says.
        """
        return rewards_of(rule, failed, self.seats, self.teams)

    def close(self) -> Any:
        """Release what the episode held. Called exactly once, however the episode ends; may be `async`."""
        return None


def check_limits(name: str, seats: object, max_turns: object) -> None:
    """Check the declared seats and turns of an environment.

    Raises:
        ConfigError: They can't be used; names the environment, the value and what would be right.
    """
    if not isinstance(seats, tuple) or not seats or not all(isinstance(seat, str) and seat for seat in seats):
        raise ConfigError(f"{name}.seats is {seats!r}; a tuple of names is needed, such as ('agent',)")
    if len(set(seats)) != len(seats):
        raise ConfigError(f"{name}.seats is {seats!r}; every seat needs a name of its own")
    if not isinstance(max_turns, int) or isinstance(max_turns, bool) or max_turns < 1:
        raise ConfigError(f"{name}.max_turns is {max_turns!r}; an integer of at least 1 is needed")
