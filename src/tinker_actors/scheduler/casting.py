"""From who plays which seat to the line-ups of a phase's groups: seats that change, and opponents out of leagues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from tinker_actors.data import Group, derive_seed
from tinker_actors.policies import Handle
from tinker_actors.rollouts import (
    DemonstrationSeat,
    HarnessSeat,
    LineUp,
    PersonSeat,
    PolicySeat,
    ScriptedSeat,
    Seat,
    points,
)
from tinker_actors.sampling import SamplingParams
from tinker_actors.scheduler.config import RunConfig
from tinker_actors.scheduler.league import Pool, due
from tinker_actors.scheduler.line_ups import Players
from tinker_actors.scheduler.players import SeatSection
from tinker_actors.scheduler.versions import Version


class Casting:
    """Seats the players of a run.

    All episodes of a group are played by the same line-up, so that their rewards can be compared.

    Args:
        config: The run.
        players: Who plays.
        sampler: Ref of the sampler that serves all snapshots.
        frozen: Handles of the snapshots that play frozen seats, by `SeatSection.frozen_name`.
    """

    def __init__(self, config: RunConfig, players: Players, sampler: Any, frozen: Mapping[str, str]) -> None:
        self._config = config
        self._players = players
        self._sampler = sampler
        self._frozen = frozen
        self._leagues = {seat: entry for seat, entry in players.training.items() if entry.player == "league"}

    def training(self, step: int, version: Version, *, phase: str, groups: int) -> list[LineUp]:
        """The line-up of each group of a step's rollouts.

        Args:
            step: The step.
            version: What it is played with.
            phase: The name of the plan; leagues are drawn from anew for each.
            groups: How many.
        """
        rollouts = self._config.rollouts
        params = SamplingParams(max_tokens=rollouts.max_tokens, temperature=rollouts.temperature, stop=rollouts.stop)
        return [
            self._line_up(
                self._players.training, params, version, turn=step * groups + group, where=(phase, step, group)
            )
            for group in range(groups)
        ]

    def evaluation(self, version: Version) -> list[LineUp]:
        """The line-up of each episode of an evaluation."""
        rollouts, settings = self._config.rollouts, self._config.evaluation
        params = SamplingParams(max_tokens=rollouts.max_tokens, temperature=settings.temperature, stop=rollouts.stop)
        return [
            self._line_up(self._players.evaluation, params, version, turn=episode, where=("eval", 0, episode))
            for episode in range(settings.episodes)
        ]

    def begun(self, snapshots: Mapping[str, str]) -> Version:
        """The version that RL begins with."""
        pools = {seat: Pool().entered(snapshots[entry.policy or ""], entry) for seat, entry in self._leagues.items()}
        return Version(snapshots=snapshots, pools=pools)

    def after(self, version: Version, step: int, groups: Sequence[Group], snapshots: Mapping[str, str]) -> Version:
        """The version after a step.

        Args:
            version: The one before.
            step: The step's number.
            groups: What was played in it.
            snapshots: What was published at its end.
        """
        pools: dict[str, Pool] = {}
        for seat, entry in self._leagues.items():
            pool = version.pools.get(seat, Pool()).scored(points(groups))
            pools[seat] = pool.entered(snapshots[entry.policy or ""], entry) if due(entry, step) else pool
        return Version(snapshots=snapshots, pools=pools)

    def _line_up(
        self,
        players: Mapping[str, SeatSection],
        params: SamplingParams,
        version: Version,
        *,
        turn: int,
        where: tuple[str, int, int],
    ) -> LineUp:
        names = list(players)
        moved = turn % len(names) if self._config.rollouts.rotate_seats else 0
        return {
            seat: self._seat(name, players[name], params, version, where)
            for seat, name in zip(names, names[-moved:] + names[:-moved], strict=True)
        }

    def _seat(
        self, name: str, player: SeatSection, params: SamplingParams, version: Version, where: tuple[str, int, int]
    ) -> Seat:
        if player.player == "script":
            return ScriptedSeat(function=player.function or "", options=player.options)
        if player.player == "demonstration":
            return DemonstrationSeat(trainable=False)
        if player.player == "person":
            return PersonSeat()
        own = SamplingParams(
            max_tokens=player.max_tokens or params.max_tokens,
            temperature=params.temperature if player.temperature is None else player.temperature,
            stop=params.stop,
        )
        snapshot = self._snapshot(name, player, version, where)
        seat = PolicySeat(
            sampler=self._sampler,
            policy=Handle.parse(snapshot).policy_id,
            snapshot=snapshot,
            params=own,
            trainable=player.learns,
        )
        return _behind_harness(seat, player, where[0] == "eval") if player.player == "endpoint" else seat

    def _snapshot(self, name: str, player: SeatSection, version: Version, where: tuple[str, int, int]) -> str:
        if player.player == "snapshot":
            return self._frozen[player.frozen_name]
        newest = version.snapshots[player.policy or ""]
        if player.learns:
            return newest
        luck = Random(derive_seed(self._config.seed, "league", name, *where))
        return version.pools.get(name, Pool()).draw(player, luck, newest=newest)


def _behind_harness(seat: PolicySeat, player: SeatSection, evaluating: bool) -> HarnessSeat:
    """The seat with a harness in front of its policy; an evaluation's own temperature goes before the harness's."""
    return HarnessSeat(
        sampler=seat.sampler,
        policy=seat.policy,
        snapshot=seat.snapshot,
        params=seat.params,
        trainable=seat.trainable,
        harness=player.harness or "",
        command=player.command or (),
        options=player.options,
        seconds=player.seconds,
        difference="override" if evaluating else player.difference or "refuse",
        tool_format=player.tool_format or "hermes",
    )
