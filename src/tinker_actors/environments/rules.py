"""The rules of play that an environment declares: who acts when, who plays together, what a seat's failure costs."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, cast

from tinker_actors.errors import ConfigError


class Forfeit(Enum):
    """What becomes of an episode in which a seat fails: its agent raises, is cancelled or doesn't answer in time.

    The seat that failed is never trained on such an episode. Where every seat failed, and where the environment did,
    the episode is dropped whatever the rule.
    """

    LOSS = "loss"
    """The seat has lost, and its team with it: -1 to them, +1 to every other seat."""
    DRAW = "draw"
    """Nobody is rewarded for how the episode ended."""
    DROP = "drop"
    """The episode has failed: it is counted and named, and nobody is trained on it."""


class TurnOrder(Enum):
    """Who acts next, where there are several seats."""

    FREE = "free"
    """The seats that the environment's observations name: one, several or all, as it likes."""
    TURN_BASED = "turn_based"
    """One seat at a time, which the environment names."""
    ROUND_ROBIN = "round_robin"
    """One seat at a time, in the order of `seats`; the observation may be given without the seat's name."""
    SIMULTANEOUS = "simultaneous"
    """All seats in every turn; an observation without names is shown to each."""


def check_rules(name: str, seats: tuple[str, ...], order: object, teams: object, rule: object) -> None:
    """Check what an environment declares.

    Raises:
        ConfigError: It can't be used; names the environment, the value and what would be right.
    """
    if not isinstance(order, TurnOrder):
        raise ConfigError(f"{name}.turn_order is {order!r}; one of {', '.join(map(str, TurnOrder))} is needed")
    if not isinstance(rule, Forfeit):
        raise ConfigError(f"{name}.forfeit_rule is {rule!r}; one of {', '.join(map(str, Forfeit))} is needed")
    if not isinstance(teams, Mapping):
        raise ConfigError(f"{name}.teams is {teams!r}; a mapping from team to its seats is needed")
    placed: dict[Any, Any] = {}
    for team, members in cast("Mapping[Any, Any]", teams).items():
        if not isinstance(team, str) or not team or team in seats:
            raise ConfigError(f"{name}.teams has a team {team!r}; a name that no seat bears is needed")
        if not isinstance(members, tuple) or not members:
            raise ConfigError(f"{name}.teams[{team!r}] is {members!r}; a tuple of seats is needed")
        for seat in cast("tuple[Any, ...]", members):
            if seat not in seats:
                raise ConfigError(f"{name}.teams[{team!r}] names seat {seat!r}; its seats are {list(seats)}")
            if seat in placed:
                raise ConfigError(f"{name}.teams has seat {seat!r} in {placed[seat]!r} and {team!r}; one team at most")
            placed[seat] = team


def rewards_of(
    rule: Forfeit, failed: tuple[str, ...], seats: tuple[str, ...], teams: Mapping[str, tuple[str, ...]]
) -> dict[str, float] | None:
    """What a rule gives by itself.

    >>> rewards_of(Forfeit.LOSS, ("a",), ("a", "b", "c"), {"home": ("a", "b")})
    {'a': -1.0, 'b': -1.0, 'c': 1.0}

    Args:
        rule: The rule.
        failed: The seats that failed.
        seats: All seats.
        teams: The seats of each team.

    Returns:
        Rewards by seat, or None to drop the episode.
    """
    if rule is Forfeit.DROP:
        return None
    if rule is Forfeit.DRAW:
        return {}
    lost = set(failed).union(*(members for members in teams.values() if set(members) & set(failed)))
    return {seat: -1.0 if seat in lost else 1.0 for seat in seats}
