"""`tinker-actors play`: a person takes a seat of an environment, or watches others play."""

from __future__ import annotations

import argparse
import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from tinker_actors.console.bounds import check_number
from tinker_actors.console.opponents import Opponents, Player, Who
from tinker_actors.coordinator import EpisodeLimits, run_episode
from tinker_actors.data import Episode, Message, Task, ToolList, Trajectory, derive_seed
from tinker_actors.environments import Action, Agent, EnvironmentFactory, LiveEnvironment, load_environment
from tinker_actors.environments.person import Terminal
from tinker_actors.environments.visible import visible
from tinker_actors.errors import ConfigError
from tinker_actors.rollouts import outcome
from tinker_actors.scheduler.loading import parse_value

_OUTCOMES = {"win": ("won", "green"), "draw": ("drawn", "yellow"), "loss": ("lost", "red")}


def play_command(options: argparse.Namespace) -> int:
    """Play games.

    Returns:
        The exit code: 0, 1 if a game failed, 130 if the person left.

    Raises:
        ConfigError: The environment or a player can't be loaded, or an option can't work.
    """
    check_number("--games", options.games, least=1)
    given = _options(options.option)
    seats = load_environment(options.environment, **given).environment.seats
    cast = _cast(options, seats)
    factory = load_environment(options.environment, **{**_of_runs(options.environment, cast), **given})
    try:
        return asyncio.run(_Games(options, factory, cast, Terminal.of_process()).play())
    except KeyboardInterrupt:
        return 130


def _options(pairs: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"--option is {pair!r}; NAME=VALUE is needed, such as view=board")
        found[name.replace("-", "_")] = parse_value(value)
    return found


def _cast(options: argparse.Namespace, seats: Sequence[str]) -> dict[str, Who]:
    """Who plays each seat."""
    own = options.seat or seats[0]
    if own not in seats:
        raise ConfigError(f"--seat is {own!r}; the environment's seats are {', '.join(seats)}")
    if options.watch and options.seat:
        raise ConfigError(f"--seat is {own!r}, but with --watch nobody takes one; leave one of them out")
    named: dict[str, str] = {}
    others: str | None = None
    for text in options.against:
        seat, equals, who = text.partition("=")
        if equals and seat in seats:
            named[seat] = who
        elif equals and not Path(text).exists() and not any(sign in seat for sign in ":/@"):
            # neither a model with options nor a path: a seat is meant
            raise ConfigError(f"--against is {text!r}; the environment's seats are {', '.join(seats)}")
        elif others is None:
            others = text
        else:
            raise ConfigError(f"--against is {others!r} and {text!r}; SEAT=WHO says whom each of several seats is for")
    if not options.watch:
        if own in named:
            raise ConfigError(f"--against {own}={named[own]}: that seat is yours; --seat takes another")
        if others is not None and len(seats) == 1:
            raise ConfigError(
                f"--against is {others!r}, but there is no seat but {own!r}; --watch shows others play it"
            )
        named[own] = "person"
    texts = {seat: named.get(seat, others or "demonstration") for seat in seats}
    cast = {seat: Who.parse(text, options.store) for seat, text in texts.items()}
    if options.watch and (people := [seat for seat, who in cast.items() if who.kind == "person"]):
        raise ConfigError(f"a person plays {people[0]!r}, but --watch is for games of others; leave it out")
    return cast


def _of_runs(environment: str, cast: Mapping[str, Who]) -> dict[str, Any]:
    """The environment's options as a run among the players has them: its policy knows no others."""
    for who in cast.values():
        config = who.run_config()
        if config is not None and load_environment(config.environment.name, **config.environment.options).name == (
            load_environment(environment, **config.environment.options).name
        ):
            return dict(config.environment.options)
    return {}


class _Games:
    """Plays one game after the other and counts."""

    def __init__(
        self, options: argparse.Namespace, factory: EnvironmentFactory, cast: Mapping[str, Who], terminal: Terminal
    ) -> None:
        self._options = options
        self._factory = factory
        self._cast = cast
        self._terminal = terminal
        self._console = terminal.console
        self._seed: int = random.randrange(2**31) if options.seed is None else options.seed

    async def play(self) -> int:
        """All games; the exit code."""
        games, failed = self._options.games, False
        tally = {seat: Counter[str]() for seat in self._cast}
        async with Opponents(
            self._factory, temperature=self._options.temperature, max_tokens=self._options.max_tokens
        ) as opponents:
            players = {seat: await opponents.player(who, seat) for seat, who in self._cast.items()}
            self._introduce(players)
            for game in range(games):
                if games > 1:
                    self._print(Text(f"\nGame {game + 1} of {games}", style="bold"))
                episode = await self._game(game, players)
                if self._terminal.left:
                    self._print(Text("You have left.", style="dim"))
                    return 130
                self._show_result(episode, players)
                failed = failed or episode.end.is_error
                for entry in () if episode.end.is_error else episode.trajectories:
                    tally[entry.seat][outcome(episode, entry)] += 1
        if games > 1 and len(tally) > 1:
            self._print(Text())
            for seat, counts in tally.items():
                shares = ", ".join(f"{counts[name]} {word}" for name, (word, _) in _OUTCOMES.items())
                self._print(Text(f"{seat}: {shares}"))
        return 1 if failed else 0

    async def _game(self, game: int, players: Mapping[str, Player]) -> Episode:
        luck = derive_seed(self._seed, "luck", game)
        live = LiveEnvironment(self._factory(), luck=luck)
        agents = {seat: player.agent(seat, live, self._terminal, luck) for seat, player in players.items()}
        if self._options.watch:
            agents = {seat: _Watched(agent, seat, self._terminal) for seat, agent in agents.items()}
        task = Task(environment=self._factory.name, seed=derive_seed(self._seed, "task", game))
        return await run_episode(live, agents, task=task, id=f"game-{game}", limits=EpisodeLimits())

    def _introduce(self, players: Mapping[str, Player]) -> None:
        about = (self._factory.environment.__doc__ or "").strip().partition("\n")[0]
        self._print(Text.assemble((self._factory.name, "bold"), f": {about}" if about else ""))
        if self._factory.spec.options:
            chosen = ", ".join(f"{name}={value}" for name, value in self._factory.spec.options.items())
            self._print(Text(f"options: {chosen}", style="dim"))
        for seat, player in players.items():
            who = "you" if player.label == "person" else player.label
            self._print(Text.assemble((seat, "bold"), f"  {who}", f"  ({player.note})" if player.note else ""))
        self._print(Text(f"the same games again: --seed {self._seed}\n", style="dim"))

    def _show_result(self, episode: Episode, players: Mapping[str, Player]) -> None:
        self._print(Text(f"\n{episode.end.value.capitalize()}", style="bold"))
        if episode.error:
            self._print(Text(visible(episode.error), style="red"))
        if episode.metrics:
            self._print(Text("  ".join(f"{name} {value:g}" for name, value in episode.metrics.items()), style="dim"))
        table = Table.grid(padding=(0, 2))
        for entry in episode.trajectories:
            label = players[entry.seat].label
            word, style = ("", "")
            if len(episode.trajectories) > 1 and not episode.end.is_error:
                word, style = _OUTCOMES[outcome(episode, entry)]
            said = " | ".join(visible(turn.text).replace("\n", "↵") or '""' for turn in entry.turns)
            table.add_row(
                Text(entry.seat, style="bold"),
                Text("you" if label == "person" else label),
                Text(f"reward {entry.reward:g}"),
                Text(word, style=style),
                Text(said, style="dim"),
            )
        self._console.print(table)

    def _print(self, text: Text) -> None:
        self._console.print(text, soft_wrap=True)


class _Watched(Agent):
    """Another agent, of whom is shown what it sees and says."""

    def __init__(self, agent: Agent, seat: str, terminal: Terminal) -> None:
        self.policy, self.trainable = agent.policy, agent.trainable
        self._agent = agent
        self._seat = seat
        self._terminal = terminal

    async def equip(self, tools: ToolList) -> None:
        await self._agent.equip(tools)

    async def act(self, messages: Sequence[Message]) -> Action | str:
        action = await self._agent.act(messages)
        text = action if isinstance(action, str) else action.text
        self._terminal.show(messages)
        self._terminal.console.print(Text.assemble((f"{self._seat}> ", "bold"), visible(text)), soft_wrap=True)
        return action

    async def finish(self, trajectory: Trajectory, error: str | None) -> None:
        await self._agent.finish(trajectory, error)
