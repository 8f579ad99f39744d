"""An episode's record as text for a terminal: its seats, their turns, and every token with what it carries."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from rich.text import Text

from tinker_actors.console.colouring import (
    OBSERVED,
    TRAINED,
    UNTRAINED,
    Colouring,
    advantage_style,
    legend,
    logprob_style,
)
from tinker_actors.environments.halfblocks import half_blocks, shades
from tinker_actors.environments.visible import visible
from tinker_actors.errors import DataError
from tinker_actors.models.pieces import Piece, pieces
from tinker_actors.models.tokenizer import Tokenizer
from tinker_actors.rollouts.pictures import unpacked


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How episodes are shown.

    Attributes:
        tokenizer: Of the run's model; None shows texts in place of tokens.
        colouring: What the colours of sampled tokens say.
        values: Whether log-prob and advantage stand behind every sampled token.
        colours: Whether there are any.
        seats: Which seats are shown; None for all.
    """

    tokenizer: Tokenizer | None
    colouring: Colouring = "logprob"
    values: bool = False
    colours: bool = True
    seats: tuple[str, ...] | None = None


def episode_view(record: Mapping[str, Any], look: Look) -> Iterator[Text]:
    """A record of `transcript` as blocks of text, from its title to its last turn."""
    yield _title(record)
    if record["metrics"]:
        yield Text("  ".join(f"{name} {value:g}" for name, value in record["metrics"].items()))
    if record["error"]:
        yield Text(f"error: {visible(record['error'])}", style="red")
    seats = [seat for seat in record["seats"] if look.seats is None or seat["seat"] in look.seats]
    largest = largest_advantage(seats)
    if look.colours and _has_tokens(seats) and look.tokenizer is not None:
        yield legend(look.colouring, largest)
    if look.values:
        yield Text("behind each sampled token: {log-prob|advantage}", style="dim")
    for seat in seats:
        yield Text()
        yield _seat_line(seat)
        for number, turn in enumerate(seat["turns"], 1):
            yield from _turn(seat["seat"], number, turn, look, largest)
        if not seat["turns"]:
            yield Text("  it never came to act", style="dim")


def largest_advantage(seats: Sequence[Mapping[str, Any]]) -> float:
    """The largest magnitude among the advantages of seats; 0 where there are none."""
    rows = [turn.get("advantages") or () for seat in seats for turn in seat["turns"]]
    return max((abs(value) for row in rows for value in row), default=0.0)


def _has_tokens(seats: Sequence[Mapping[str, Any]]) -> bool:
    return any(turn.get("action_ids") for seat in seats for turn in seat["turns"])


def _title(record: Mapping[str, Any]) -> Text:
    step = f"step {record['step']}  " if "step" in record else ""
    about = f"  {record['environment']}  task {record['task']}  {record['end']}"
    return Text.assemble((f"{step}{record['id']}", "bold"), about)


def _seat_line(seat: Mapping[str, Any]) -> Text:
    parts = [f"reward {seat['reward']:g}"]
    if seat["policy"]:
        parts.append(f"policy {seat['policy']}")
    if seat.get("staleness") is not None:
        parts.append(f"staleness {seat['staleness']}")
    found = [value for turn in seat["turns"] for value in turn.get("advantages") or ()]
    if found and min(found) == max(found):
        parts.append(f"advantage {found[0]:+.3g}")
    elif found:
        parts.append(f"advantages {min(found):+.3g} to {max(found):+.3g}")
    if not seat["trainable"]:
        parts.append("frozen")
    return Text.assemble((seat["seat"], "bold"), "  ", "  ".join(parts))


def _turn(seat: str, number: int, turn: Mapping[str, Any], look: Look, largest: float) -> Iterator[Text]:
    yield _turn_line(number, turn)
    ids = turn.get("action_ids")
    if look.tokenizer is None or ids is None or not (ids or turn["observation_ids"]):
        yield from _messages(turn, look)
        yield _indented(Text.assemble((f"{seat}> ", "bold"), visible(turn["text"])))
        if ids is None and turn["action_tokens"] and "action_ids" in turn:
            yield Text("    its tokens are left out: the episode is too long", style="dim")
        return
    observed = turn["observation_ids"]
    every = [*observed, *ids]
    found = pieces(look.tokenizer, every, cuts=[len(observed)])
    yield from _pictures(turn, look)
    if prompt := "".join(shown_text(piece) for piece in found if piece.start < len(observed)):
        yield _indented(Text(prompt, style=OBSERVED))
    action = Text.assemble((f"{seat}> ", "bold"))
    for piece in found:
        if piece.start >= len(observed):
            _append(action, piece, _carried(piece, len(observed), turn), look, largest)
    yield _indented(action)


def _turn_line(number: int, turn: Mapping[str, Any]) -> Text:
    parts = [f"turn {number}", f"reward {turn['reward']:g}", turn["end"].replace("_", " ")]
    if turn["snapshot"]:
        after = "" if turn["snapshot_max"] == turn["snapshot"] else f" to {_short(turn['snapshot_max'])}"
        parts.append(f"{_short(turn['snapshot'])}{after}")
        parts.append(f"temperature {turn['temperature']:g}")
    parts.append(f"{turn['observation_tokens']} + {turn['action_tokens']} tokens")
    if turn["restarts"]:
        parts.append("begins a new datum")
    return Text(f"  {' · '.join(parts)}", style="cyan")


def _short(handle: str) -> str:
    policy, _, name = handle.removeprefix("tinker://").partition("/")
    return f"{policy}/{name.rpartition('/')[2].lstrip('0') or '0'}"


def _carried(piece: Piece, offset: int, turn: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Log-prob and advantage of a piece: the sum and the mean of its tokens'."""
    own = slice(piece.start - offset, piece.stop - offset)
    logprobs, advantages = turn["logprobs"], turn["advantages"]
    return (
        None if logprobs is None else math.fsum(logprobs[own]),
        None if advantages is None else fmean(advantages[own]),
    )


def _append(
    text: Text,
    piece: Piece,
    carried: tuple[float | None, float | None],
    look: Look,
    largest: float,
) -> None:
    logprob, advantage = carried
    style = UNTRAINED if advantage is None else TRAINED
    if look.colouring == "logprob" and logprob is not None:
        style = logprob_style(logprob)
    elif look.colouring == "advantage" and advantage is not None:
        style = advantage_style(advantage, largest)
    text.append(shown_text(piece), style)
    if look.values:
        values = [("-" if logprob is None else f"{logprob:.2f}"), ("-" if advantage is None else f"{advantage:+.2f}")]
        text.append("{" + "|".join(values) + "}", "dim")


def shown_text(piece: Piece) -> str:
    """A piece's text, with a sign where a line ends."""
    return visible(piece.text).replace("\n", "↵\n")


def _messages(turn: Mapping[str, Any], look: Look) -> Iterator[Text]:
    yield from _pictures(turn, look)
    for message in turn["messages"]:
        yield _indented(Text(f"{message['role']}: {visible(message['content'])}", style=OBSERVED))


def _pictures(turn: Mapping[str, Any], look: Look) -> Iterator[Text]:
    for message in turn["messages"]:
        for image in message.get("images", ()):
            if "png" not in image:
                continue
            try:
                small = unpacked(image)
            except (DataError, ValueError):
                yield Text(f"    an image of {image['width']}x{image['height']} that can't be read", style="dim")
                continue
            yield _indented(half_blocks(small) if look.colours else shades(small))


def _indented(text: Text) -> Text:
    lines = text.split("\n", allow_blank=True)
    joined = Text("\n", no_wrap=text.no_wrap).join(Text("    ") + line for line in lines)
    joined.no_wrap = text.no_wrap
    return joined
