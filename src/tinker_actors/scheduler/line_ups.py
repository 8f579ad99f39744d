"""Who plays which seat, from a run's tables and its environment's seats."""

from __future__ import annotations

import difflib
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tinker_actors.environments import Environment, EnvironmentFactory
from tinker_actors.environments.outside import check_harness, check_served, load_harness
from tinker_actors.environments.tools import tool_format
from tinker_actors.errors import ConfigError, TinkerActorsError
from tinker_actors.policies import Snapshot, SnapshotStore
from tinker_actors.rollouts import ScriptedSeat, script
from tinker_actors.scheduler.config import RunConfig
from tinker_actors.scheduler.players import SeatSection
from tinker_actors.scheduler.starts import hint_of, newest


@dataclass(frozen=True, slots=True, kw_only=True)
class Players:
    """Who plays each seat of the environment, with every default filled in.

    Attributes:
        training: In the rollouts that are trained on.
        evaluation: In evaluations.
    """

    training: Mapping[str, SeatSection]
    evaluation: Mapping[str, SeatSection]

    @classmethod
    def of(cls, config: RunConfig, seats: Sequence[str]) -> Players:
        """The players of a run.

        Raises:
            ConfigError: A table is for a seat that the environment hasn't, a seat's policy is not said, or a policy
                has no seat to learn from.
        """
        training = {seat: _filled(config, "seats", seat, config.seats.get(seat)) for seat in seats}
        own = config.evaluation.seats
        evaluation = {
            seat: _filled(config, "evaluation.seats", seat, own[seat]) if seat in own else _still(training[seat])
            for seat in seats
        }
        limits = config.rollouts.seat_timeouts
        for table, given in (("seats", config.seats), ("evaluation.seats", own), ("rollouts.seat_timeouts", limits)):
            _refuse_strangers(table, given, seats)
        playing = {section.policy for section in training.values() if section.learns}
        if idle := [name for name in config.learners() if name not in playing]:
            raise ConfigError(
                f"policy {idle[0]!r} plays no seat, so that it would never learn; the seats are {', '.join(seats)}: "
                f"give it one, as in seats.{seats[0]}.policy = {idle[0]!r}"
            )
        if config.rollouts.rotate_seats and len(seats) == 1:
            raise ConfigError(f"rollouts.rotate_seats is true, but the environment has one seat, {seats[0]!r}")
        _refuse_crowds(config, training, evaluation)
        return cls(training=training, evaluation=evaluation)

    def described(self) -> dict[str, str]:
        """Who plays against whom in evaluations, in words, by seat."""
        return {seat: _described(section) for seat, section in self.evaluation.items()}

    def title(self, config: RunConfig) -> str:
        """The run's name, with who plays where the tables say so."""
        if not (config.policies or config.seats or config.evaluation.seats):
            return config.name
        each = ", ".join(f"{seat} {_described(section)}" for seat, section in self.training.items())
        other = [f"{seat} {_described(self.evaluation[seat])}" for seat in config.evaluation.seats]
        return f"{config.name} ({each}; evaluated with {', '.join(other)})" if other else f"{config.name} ({each})"


def _described(section: SeatSection) -> str:
    match section.player:
        case "policy":
            return f"policy {section.policy}"
        case "snapshot":
            return f"snapshot {section.frozen_name}"
        case "league":
            return f"league of {section.policy}"
        case "script":
            return f"script {section.function}"
        case "endpoint":
            return f"policy {section.policy} behind {section.harness or ' '.join(section.command or ())}"
        case other:
            return other


def check_players(players: Players, factory: EnvironmentFactory, held: Collection[str] = ()) -> None:
    """Find out whether the players can be there, before anything is started.

    Args:
        players: Who plays.
        factory: The environment.
        held: Names of the frozen snapshots (`SeatSection.frozen_name`) that a run which goes on has copies of.

    Raises:
        ConfigError: A script isn't found or can't be called, the environment has no demonstrations, or a store doesn't
            hold the snapshot.
    """
    for table, seats in (("seats", players.training), ("evaluation.seats", players.evaluation)):
        for seat, section in seats.items():
            if section.player == "demonstration" and factory.environment.demonstrate is Environment.demonstrate:
                raise ConfigError(
                    f"{table}.{seat}.player is 'demonstration', but environment {factory.name} has no demonstrate()"
                )
            try:
                if section.function is not None:
                    script(ScriptedSeat(function=section.function, options=section.options), factory.environment)
                if section.player == "endpoint":
                    check_endpoint(section)
                if section.store is not None and section.frozen_name not in held:
                    stored_snapshot(section)
            except TinkerActorsError as error:
                raise ConfigError(f"{table}.{seat}: {error}{hint_of(section.store)}") from error


def check_endpoint(section: SeatSection) -> None:
    """Find out whether a harness can play.

    Raises:
        ConfigError: Its function isn't found or can't be called, its format of calls isn't one, or the extra `serve`
            is missing.
    """
    if section.harness is not None:
        check_harness(load_harness(section.harness), section.harness, section.options)
    elif section.options:
        raise ConfigError(f"options are {section.options}, but a command has none; put them among its arguments")
    elif section.command and shutil.which(section.command[0]) is None:
        raise ConfigError(f"command {section.command[0]!r} is not a program that can be found")
    tool_format(section.tool_format or "hermes")
    check_served()


def stored_snapshot(section: SeatSection) -> Snapshot:
    """The snapshot in another store that a seat's table names.

    Raises:
        ConfigError: The table doesn't say whose newest snapshot is meant.
        UnknownPolicyError: The store has none such.
    """
    store = SnapshotStore(section.store or "")
    if section.snapshot not in (None, "latest"):
        return store.get(section.snapshot)
    if section.policy is not None:
        return store.latest(section.policy)
    return newest(store)


def _refuse_crowds(
    config: RunConfig, training: Mapping[str, SeatSection], evaluation: Mapping[str, SeatSection]
) -> None:
    """Let a person play one episode at a time, in the run's own process, whose terminal it is."""
    rollouts = config.rollouts
    for table, seats, at_once in (
        (
            "seats",
            training,
            ("rollouts.tasks_per_step x rollouts.group_size", rollouts.tasks_per_step * rollouts.group_size),
        ),
        ("evaluation.seats", evaluation, ("evaluation.episodes", config.evaluation.episodes)),
    ):
        for seat in (seat for seat, section in seats.items() if section.player == "person"):
            needed = {at_once[0]: (at_once[1], 1), "rollouts.workers": (rollouts.workers, 0)}
            needed["rollouts.submit_ahead"] = (rollouts.submit_ahead, 0)
            if table == "evaluation.seats":
                needed["evaluation.workers"] = (config.evaluation.workers, 0)
            for name, (value, right) in needed.items():
                if value != right:
                    raise ConfigError(
                        f"{table}.{seat}.player is 'person', who plays one episode at a time in the run's own "
                        f"process: {name} is {value}, and {right} is needed; to play a policy without training it, "
                        "there is `tinker-actors play`"
                    )


def _filled(config: RunConfig, table: str, seat: str, section: SeatSection | None) -> SeatSection:
    """A seat's table with the policy that it means."""
    section = section or SeatSection()
    known = list(config.learners())
    if (
        section.player not in ("policy", "snapshot", "league", "endpoint")
        or section.policy is not None
        or section.store
    ):
        return section
    if seat in known:
        policy = seat
    elif len(known) == 1:
        policy = known[0]
    else:
        raise ConfigError(
            f"{table}.{seat} names no policy, and this run has several; {table}.{seat}.policy is needed, one of "
            f"{', '.join(known)}"
        )
    return section.model_copy(update={"policy": policy})


def _still(section: SeatSection) -> SeatSection:
    """Who plays in evaluations in place of a training player: in that of a league, the policy as RL begins."""
    if section.player != "league":
        return section.model_copy(update={"temperature": None}) if section.learns else section
    return SeatSection(player="snapshot", policy=section.policy, snapshot="initial", max_tokens=section.max_tokens)


def _refuse_strangers(table: str, given: Mapping[str, object], seats: Sequence[str]) -> None:
    for seat in given:
        if seat not in seats:
            close = difflib.get_close_matches(seat, seats, n=1)
            hint = f"; did you mean {table}.{close[0]}?" if close else ""
            raise ConfigError(f"{table}.{seat}: the environment's seats are {', '.join(seats)}{hint}")
