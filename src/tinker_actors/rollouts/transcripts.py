"""Episodes for people: a record for a line of JSON, and that record as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tinker_actors.data import Episode, Trajectory, Turn
from tinker_actors.rollouts.metrics import trajectory_staleness


def transcript(episode: Episode, *, trainer_steps: Mapping[str, int] | None = None, **more: Any) -> dict[str, Any]:
    """A record of JSON values: what was said, what it earned, how it ended.

    Args:
        episode: The episode.
        trainer_steps: For each policy, optimizer steps that it had behind it when it trained on the episode; each seat
            then has its `staleness`, and null if none of these policies played it.
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
        "seats": [_seat(entry, trainer_steps) for entry in episode.trajectories],
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


def _seat(trajectory: Trajectory, trainer_steps: Mapping[str, int] | None) -> dict[str, Any]:
    step = (trainer_steps or {}).get(trajectory.policy or "")
    stale = {"staleness": None if step is None else trajectory_staleness(trajectory, step)} if trainer_steps else {}
    return {
        "seat": trajectory.seat,
        "policy": trajectory.policy,
        "trainable": trajectory.trainable,
        **stale,
        "reward": trajectory.reward,
        "prompt_tokens": sum(len(turn.observation) for turn in trajectory.turns),
        "action_tokens": trajectory.action_tokens,
        "turns": [_turn(turn) for turn in trajectory.turns],
    }


def _turn(turn: Turn) -> dict[str, Any]:
    sampling = turn.sampling
    return {
        "messages": [_message(message.role, message.shown, message.name) for message in turn.messages],
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


def _message(role: str, content: str, name: str | None) -> dict[str, str]:
    return {"role": role, "content": content} if name is None else {"role": role, "name": name, "content": content}


def _notes(turn: Mapping[str, Any]) -> str:
    notes = [f"{turn['action_tokens']} tokens"] if turn["action_tokens"] else ["no tokens"]
    if turn["end"] != "stop":
        notes.append(turn["end"].replace("_", " "))
    if turn["reward"]:
        notes.append(f"reward {turn['reward']:g}")
    return ", ".join(notes)


def _indented(text: str) -> str:
    return text.replace("\n", "\n      ")
