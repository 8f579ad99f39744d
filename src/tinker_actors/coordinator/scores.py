"""The turns of an episode's seats and what they earned, as they come in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tinker_actors.data import EpisodeEnd, Message, ModelInput, Trajectory, Turn, TurnEnd
from tinker_actors.environments import Agent


class Scores:
    """A reward belongs to the last turn of its seat; one that comes before the first turn waits for it.

    What a seat was given that never acts is a windfall of its trajectory.
    """

    def __init__(self, seats: tuple[str, ...]) -> None:
        self._turns: dict[str, list[Turn]] = {seat: [] for seat in seats}
        self._rewards: dict[str, list[float]] = {seat: [] for seat in seats}
        self._early: dict[str, float] = {}  # rewards of seats that have not acted yet

    def record(self, seat: str, turns: tuple[Turn, ...]) -> None:
        """A seat has acted."""
        self._turns[seat] += turns
        rewards = self._rewards[seat]
        for turn in turns:
            rewards.append(turn.reward)
        if self._early:
            rewards[-1] += self._early.pop(seat, 0.0)

    def reward(self, seat: str, reward: float) -> None:
        """A seat has earned something."""
        if rewards := self._rewards[seat]:
            rewards[-1] += reward
        else:
            self._early[seat] = self._early.get(seat, 0.0) + reward

    def unanswered(self, seat: str, messages: tuple[Message, ...], end: TurnEnd) -> None:
        """A seat has failed to act."""
        turn = Turn(observation=ModelInput(), action=(), logprobs=None, end=end, messages=messages)
        self.record(seat, (turn,))

    def amend(self, seat: str, end: TurnEnd) -> None:
        """The last turn of a seat ended otherwise than its agent thought."""
        self._turns[seat][-1] = replace(self._turns[seat][-1], end=end)

    def trajectories(
        self, agents: Mapping[str, Agent], end: EpisodeEnd, failed: tuple[str, ...]
    ) -> tuple[Trajectory, ...]:
        """One per seat.

        Args:
            agents: Who played.
            end: How the episode ended.
            failed: The seats that forfeited it.
        """
        return tuple(
            Trajectory(
                seat=seat,
                policy=agents[seat].policy,
                turns=self._rewarded(seat),
                end=EpisodeEnd.FAILED if seat in failed else end,
                trainable=agents[seat].trainable,
                windfall=self._early.get(seat, 0.0),
            )
            for seat in self._turns
        )

    def _rewarded(self, seat: str) -> tuple[Turn, ...]:
        pairs = zip(self._turns[seat], self._rewards[seat], strict=True)
        return tuple(turn if turn.reward == reward else replace(turn, reward=reward) for turn, reward in pairs)
