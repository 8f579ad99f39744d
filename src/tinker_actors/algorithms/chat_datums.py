"""Supervised datums of written conversations, in the very tokens in which a policy would read and say them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tinker_actors.data import (
    Datum,
    EpisodeEnd,
    ModelInput,
    Trajectory,
    Turn,
    TurnEnd,
    concatenate,
    sft_datums,
)
from tinker_actors.data.chat_rows import ChatRow
from tinker_actors.environments import Conversation
from tinker_actors.errors import DataError
from tinker_actors.models.rendering import ChatRenderer

TrainOn = Literal["all", "last"]
TooLong = Literal["refuse", "drop", "keep_first", "keep_last"]


@dataclass(frozen=True, slots=True)
class Dropped:
    """An example that a policy for long ones left out.

    Attributes:
        reason: One line.
    """

    reason: str


def chat_datums(row: ChatRow, renderer: ChatRenderer, *, train_on: TrainOn = "all") -> tuple[Datum, ...]:
    """Weight 1 on every token of the assistant messages to be learned, the stop token included, and 0 elsewhere.

    Tokens are only appended to. Where the template rewrites what it has written (for instance strips earlier
    reasoning), another datum begins, and each message is still trained once.

    Args:
        row: The conversation.
        renderer: Of the policy that is to learn from it, with the row's tools.
        train_on: All assistant messages that the row doesn't exclude, or the last one only.

    Raises:
        DataError: Nothing is to be trained, or nothing stands before an assistant message.
        ModelError: The template refuses the messages.
    """
    speaking = [place for place, message in enumerate(row.messages) if message.role == "assistant"]
    conversation = Conversation(renderer)
    turns: list[Turn] = []
    before: list[ModelInput] = []  # observations and actions that are shown but not trained
    restarts, first = False, 0
    for place in speaking:
        prompt = conversation.observe(row.messages[first:place])
        if prompt.restarts:
            before.clear()
        restarts = restarts or prompt.restarts
        text = renderer.written(row.messages[: place + 1])
        action = renderer.encode_action(text)
        conversation.act(action, text)
        first = place + 1
        if row.trained[place] and (train_on == "all" or place == speaking[-1]):
            seen = concatenate([*before, prompt.appended])
            turns.append(Turn(observation=seen, action=action, logprobs=None, end=TurnEnd.STOP, restarts=restarts))
            before.clear()
            restarts = False
        else:
            before += [prompt.appended, ModelInput.of(action)]
    if not turns:
        raise DataError("the last assistant message has weight 0 and train_on is 'last': nothing is to be learned")
    return sft_datums(Trajectory(seat="assistant", policy=None, turns=tuple(turns), end=EpisodeEnd.TERMINATED))


def fitted(datums: Sequence[Datum], limit: int, too_long: TooLong) -> tuple[Datum, ...] | Dropped:
    """An example's datums, each of at most `limit` tokens, the last target included.

    Args:
        datums: Those of one example.
        limit: Tokens.
        too_long: What happens to an example with a longer one: `refuse`, `drop` the example, `keep_first` exactly its
            first tokens, or `keep_last` exactly its last ones. A datum that has no trained token left then goes.

    Raises:
        DataError: One is too long and `too_long` is `refuse`, or a cut would go through an image.
    """
    longest = max(len(datum) + 1 for datum in datums)
    if longest <= limit:
        return tuple(datums)
    if too_long == "refuse":
        raise DataError(
            f"the example has {longest} tokens, and {limit} is the limit; see data.max_length and data.too_long"
        )
    if too_long == "drop":
        return Dropped(f"{longest} tokens; {limit} is the limit")
    cut = [_cut(datum, limit, first=too_long == "keep_first") for datum in datums]
    kept = tuple(datum for datum in cut if any(datum.weights or ()))
    return kept or Dropped(f"{longest} tokens; the {too_long.removeprefix('keep_')} {limit} hold nothing to be learned")


def trained_tokens(datums: Sequence[Datum]) -> int:
    """How many targets have a weight."""
    return sum(sum(weight != 0 for weight in datum.weights or ()) for datum in datums)


def _cut(datum: Datum, limit: int, *, first: bool) -> Datum:
    count = limit - 1  # inputs, and targets
    if len(datum) <= count:
        return datum
    part = slice(0, count) if first else slice(len(datum) - count, None)
    weights = datum.weights or ()
    return replace(
        datum,
        model_input=datum.model_input.first(count) if first else datum.model_input.last(count),
        targets=datum.targets[part],
        weights=weights[part],
    )
