"""A run folder with transcripts, made without a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tinker_actors.data import Episode, EpisodeEnd, Message, ModelInput, SamplingRecord, Task, Trajectory, Turn, TurnEnd
from tinker_actors.models import load_tokenizer
from tinker_actors.rollouts import transcript
from tinker_actors.scheduler import RunFolder, parse_config
from tinker_actors.telemetry import JsonlWriter

MODEL = "tiny-llama"
TASK = Task(environment="duel", seed=7)


def turn(shown: str, said: str, *, reward: float = 0.0, image: bool = False) -> Turn:
    """A turn of a policy that says the text and its stop token."""
    tokenizer = load_tokenizer(MODEL)
    prompt, action = tokenizer.encode(f"<|user|>{shown}<|end|>"), tokenizer.encode(f"{said}<|end|>")
    message = Message.of(np.zeros((8, 8), np.uint8), shown) if image else Message(role="user", content=shown)
    return Turn(
        observation=ModelInput.of(prompt),
        action=tuple(action),
        logprobs=tuple(-0.5 * (1 + place) for place in range(len(action))),
        end=TurnEnd.STOP,
        reward=reward,
        messages=(message,),
        text=said,
        sampling=SamplingRecord(
            snapshot_min="tinker://mine/sampler_weights/000003",
            snapshot_max="tinker://mine/sampler_weights/000003",
            snapshot_step=3,
            temperature=0.7,
        ),
    )


def trajectory(seat: str, *turns: Turn, policy: str | None = "mine", trainable: bool = True) -> Trajectory:
    """A seat's turns."""
    return Trajectory(seat=seat, policy=policy, turns=turns, end=EpisodeEnd.TERMINATED, trainable=trainable)


def episode(id: str, *trajectories: Trajectory, error: str | None = None) -> Episode:
    """An episode; one with an error failed."""
    end = EpisodeEnd.TERMINATED if error is None else EpisodeEnd.FAILED
    return Episode(id=id, task=TASK, end=end, trajectories=trajectories, error=error, metrics={"tries": 2.0})


def recorded(root: Path) -> RunFolder:
    """A folder with three episodes of two seats, the last of which failed."""
    config = parse_config({"output": str(root), "model": {"name": MODEL}, "environment": {"name": "duel"}}, source="")
    folder = RunFolder.create(config)
    with JsonlWriter(folder.rollouts) as rollouts:
        for step, reward in ((1, -1.0), (2, 1.0)):
            mine = trajectory("x", turn("go", "12"), turn("on", "3", reward=reward))
            other = trajectory("o", turn("no", "9", reward=-reward), policy="old", trainable=False)
            played = episode(f"train-{step}-0-0", mine, other)
            advantages = {id(mine): [0.25, -1.5, 0.0, 0.25, 1.0]}
            rollouts.write(transcript(played, advantages=advantages, step=step))
        failed = episode("train-2-0-1", trajectory("x", turn("go", "1")), error="duel: step: it\x1b[31m broke")
        rollouts.write(transcript(failed, advantages={}, step=2))
    return folder
