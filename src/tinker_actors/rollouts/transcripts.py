"""Episodes for people: a record for a line of JSON, and that record as text.

A turn's record has the tokens themselves: `observation_ids` (0 in the mask) and `action_ids`, with a number for each
action token in `logprobs` and, where the trajectory was trained on, in `advantages`. What a record may hold is bounded:
past `MOST_TOKENS` tokens of a seat its turns have null in place of tokens, past `MOST_IMAGES` images their sizes only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from tinker_actors.data import Episode, Message, Trajectory, Turn
from tinker_actors.rollouts.metrics import trajectory_staleness
from tinker_actors.rollouts.pictures import picture

MOST_TOKENS = 8192
"""Tokens of one seat in a record, observations included."""
MOST_IMAGES = 8
"""Images of one seat in a record."""
_DIGITS = 6  # of log-probs and advantages, after the point


def transcript(
    episode: Episode,
    *,
    trainer_steps: Mapping[str, int] | None = None,
    advantages: Mapping[int, Sequence[float]] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """A record of JSON values: what was said, what it earned, how it ended.

    Args:
        episode: The episode.
        trainer_steps: For each policy, optimizer steps that it had behind it when it trained on the episode; each seat
            then has its `staleness`, and null if none of these policies played it.
        advantages: By the `id()` of a trajectory, what each of its action tokens was trained with.
        more: Further entries, such as `step=3`; they come first.
    """
    return {
        **more,
        "id": episode.id,
        "environment": episode.task.environment,
        "task": episode.task.seed,
        "end": episode.end.value,
        "error": episode.error,
        "metrics": dict(episode.metrics),
        "seats": [
            _seat(entry, trainer_steps, None if advantages is None else advantages.get(id(entry)))
            for entry in episode.trajectories
        ],
    }


def transcript_text(record: Mapping[str, Any]) -> str:
    """A record of `transcript`, to be read.

    Example:
        eval-0-0-0  number_guess  terminated
          agent  reward 1  policy p-1  snapshot 3
            user: guess 1-7
            agent> 4    [2 tokens]
            user: higher
            agent> 6    [2 tokens, reward 1]
    """
    lines = [f"{record['id']}  {record['environment']}  {record['end']}"]
    if record["error"]:
        lines.append(f"  error: {record['error']}")
    several = len(record["seats"]) > 1
    for seat in record["seats"]:
        by = [f"reward {seat['reward']:g}"]
        if seat["policy"]:
            by.append(f"policy {seat['policy']}")
        snapshots = dict.fromkeys(turn["snapshot"] for turn in seat["turns"] if turn["snapshot"])
        if snapshots:
            by.append(f"snapshot {', '.join(snapshots)}")
        if not seat["trainable"] and several:
            by.append("frozen")
        lines.append(f"  {seat['seat']}  {'  '.join(by)}")
        for turn in seat["turns"]:
            lines.extend(f"    {message['role']}: {_indented(message['content'])}" for message in turn["messages"])
            lines.append(f"    {seat['seat']}> {_indented(turn['text'])}    [{_notes(turn)}]")
    return "\n".join(lines)


def transcripts_text(episodes: Iterable[Episode]) -> str:
    """Episodes one after the other, to be read."""
    return "\n\n".join(transcript_text(transcript(episode)) for episode in episodes)


def _seat(
    trajectory: Trajectory, trainer_steps: Mapping[str, int] | None, advantages: Sequence[float] | None
) -> dict[str, Any]:
    step = (trainer_steps or {}).get(trajectory.policy or "")
    stale = {"staleness": None if step is None else trajectory_staleness(trajectory, step)} if trainer_steps else {}
    taken = tokens = 0
    turns: list[dict[str, Any]] = []
    images = count()
    for turn in trajectory.turns:
        tokens += len(turn.observation) + len(turn.action)
        own = None if advantages is None else advantages[taken : taken + len(turn.action)]
        taken += len(turn.action)
        turns.append({**_turn(turn, images), **_tokens(turn, own, shown=tokens <= MOST_TOKENS)})
    return {
        "seat": trajectory.seat,
        "policy": trajectory.policy,
        "trainable": trajectory.trainable,
        **stale,
        "reward": trajectory.reward,
        "prompt_tokens": sum(len(turn.observation) for turn in trajectory.turns),
        "action_tokens": trajectory.action_tokens,
        "turns": turns,
    }


def _tokens(turn: Turn, advantages: Sequence[float] | None, *, shown: bool) -> dict[str, Any]:
    if not shown:
        return dict.fromkeys(("observation_ids", "action_ids", "logprobs", "advantages"))
    return {
        "observation_ids": list(turn.observation.tokens),
        "action_ids": list(turn.action),
        "logprobs": _rounded(turn.logprobs),
        "advantages": _rounded(advantages),
    }


def _rounded(numbers: Sequence[float] | None) -> list[float] | None:
    return None if numbers is None else [round(number, _DIGITS) for number in numbers]


def _turn(turn: Turn, images: Iterator[int]) -> dict[str, Any]:
    sampling = turn.sampling
    return {
        "messages": [_message(message, images) for message in turn.messages],
        "text": turn.text,
        "reward": turn.reward,
        "end": turn.end.value,
        "observation_tokens": len(turn.observation),
        "action_tokens": len(turn.action),
        "logprob": None if turn.logprobs is None else sum(turn.logprobs),
        "restarts": turn.restarts,
        "snapshot": None if sampling is None else sampling.snapshot_min,
        "snapshot_max": None if sampling is None else sampling.snapshot_max,
        "snapshot_step": None if sampling is None else sampling.snapshot_step,
        "temperature": None if sampling is None else sampling.temperature,
        "seed": None if sampling is None else sampling.seed,
    }


def _message(message: Message, images: Iterator[int]) -> dict[str, Any]:
    name = {} if message.name is None else {"name": message.name}
    pictures = [
        picture(image) if next(images) < MOST_IMAGES else {"width": image.width, "height": image.height}
        for image in message.images
    ]
    return {
        "role": message.role,
        **name,
        "content": message.shown,
        **({"images": pictures} if pictures else {}),
    }


def _notes(turn: Mapping[str, Any]) -> str:
    count = turn["action_tokens"]
    notes = ["1 token" if count == 1 else f"{count or 'no'} tokens"]
    if turn["end"] != "stop":
        notes.append(turn["end"].replace("_", " "))
    if turn["reward"]:
        notes.append(f"reward {turn['reward']:g}")
    return ", ".join(notes)


def _indented(text: str) -> str:
    return text.replace("\n", "\n      ")
