"""`tinker-actors rollouts`: page through the transcripts of a run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from tinker_actors.console.bounds import check_number
from tinker_actors.console.episode_view import Look, episode_view
from tinker_actors.console.pager import Pager
from tinker_actors.errors import ConfigError, ModelError
from tinker_actors.models.catalogue import load_tokenizer
from tinker_actors.models.tokenizer import Tokenizer
from tinker_actors.scheduler import RunFolder
from tinker_actors.telemetry import read_jsonl


def rollouts_command(options: argparse.Namespace) -> int:
    """Show the episodes that were asked for.

    Returns:
        The exit code.

    Raises:
        ConfigError: The folder is no run's, it has no transcripts, or none is as asked for.
    """
    folder = RunFolder(Path(options.run))
    tokenizer, why = _tokenizer(folder)
    records = _chosen(_records(folder), options)
    console = Console()
    look = Look(
        tokenizer=tokenizer,
        colouring=options.colour,
        values=options.values,
        colours=console.is_terminal and not console.no_color,
        seats=(options.seat,) if options.seat else None,
    )
    if why is not None:
        Console(stderr=True).print(Text(f"texts in place of tokens: {why}"), soft_wrap=True)
    try:
        if console.is_terminal and sys.stdin.isatty() and not options.plain:
            Pager(console, records, look).run()
        else:
            _print(console, records, look)
    except KeyboardInterrupt:
        return 130
    return 0


def _print(console: Console, records: Sequence[Mapping[str, Any]], look: Look) -> None:
    for number, record in enumerate(records):
        if number:
            console.print()
        for block in episode_view(record, look):
            console.print(block, soft_wrap=not console.is_terminal)


def _tokenizer(folder: RunFolder) -> tuple[Tokenizer | None, str | None]:
    """The run's tokenizer, or why there is none."""
    try:
        return load_tokenizer(folder.load_config().model.name), None
    except ModelError as error:
        return None, str(error)


def _records(folder: RunFolder) -> list[dict[str, Any]]:
    if not folder.rollouts.is_file():
        raise ConfigError(f"{folder.root} has no {folder.rollouts.name}; an RL run writes one after its first step")
    if not (records := read_jsonl(folder.rollouts)):
        raise ConfigError(f"{folder.rollouts} is empty; has the run got past its first step?")
    return records


def _chosen(records: Sequence[dict[str, Any]], options: argparse.Namespace) -> list[dict[str, Any]]:
    check_number("--episodes", options.episodes, least=1)
    found = [own for record in records if (own := _matching(record, options)) is not None]
    if not found:
        steps = [record["step"] for record in records]
        seats = dict.fromkeys(seat["seat"] for record in records for seat in record["seats"])
        policies = dict.fromkeys(seat["policy"] for record in records for seat in record["seats"] if seat["policy"])
        raise ConfigError(
            f"no transcript is as asked for; there are {len(records)}, of steps {min(steps)} to {max(steps)}, seats "
            f"{', '.join(seats)} and policies {', '.join(policies) or 'none'}, such as {records[0]['id']}"
        )
    if options.worst or options.best:
        found.sort(key=lambda record: _reward(record, options.seat), reverse=options.best)
    return found[: options.episodes]


def _matching(record: dict[str, Any], options: argparse.Namespace) -> dict[str, Any] | None:
    """The record with the seats that were asked for, if it is one of the episodes that were."""
    if options.step is not None and record["step"] != options.step:
        return None
    if options.episode is not None and record["id"] != options.episode:
        return None
    if options.failed and record["error"] is None:
        return None
    seats = [
        seat
        for seat in record["seats"]
        if options.seat in (None, seat["seat"]) and options.policy in (None, seat["policy"])
    ]
    if not seats and (options.seat or options.policy):
        return None
    return record if len(seats) == len(record["seats"]) else {**record, "seats": seats}


def _reward(record: Mapping[str, Any], seat: str | None) -> float:
    """The sum over the seats that are shown, those that learn if there are any: others' would cancel theirs."""
    learning = [entry for entry in record["seats"] if entry["trainable"]]
    return sum(entry["reward"] for entry in learning or record["seats"] if seat in (None, entry["seat"]))
