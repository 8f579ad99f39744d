"""Records and numbers about episodes."""

import json

from tinker_actors.data import (
    Episode,
    EpisodeEnd,
    Group,
    Message,
    ModelInput,
    SamplingRecord,
    Task,
    Trajectory,
    Turn,
    TurnEnd,
)
from tinker_actors.rollouts import rollout_metrics, transcript, transcript_text, transcripts_text

TASK = Task(environment="number_guess", seed=9)


def turn(shown, text, *, reward=0.0, end=TurnEnd.STOP, tokens=2, step=3):
    record = SamplingRecord(snapshot_min="snap-3", snapshot_max="snap-3", snapshot_step=step, temperature=1.0, seed=5)
    return Turn(
        observation=ModelInput.of([1, 2, 3]),
        action=(7,) * tokens,
        logprobs=(-0.5,) * tokens,
        end=end,
        reward=reward,
        messages=(Message(role="user", content=shown),),
        text=text,
        sampling=record,
    )


def episode(*turns, id="train-0-0-0", end=EpisodeEnd.TERMINATED, error=None, others=(), metrics=None):
    mine = Trajectory(seat="agent", policy="p", turns=turns, end=end)
    return Episode(id=id, task=TASK, end=end, error=error, trajectories=(mine, *others), metrics=metrics or {})


WON = episode(turn("guess 1-7", "4"), turn("higher", "6", reward=1.0), metrics={"tries": 2.0})


def test_a_transcript_is_json_and_says_what_was_said_earned_and_sampled():
    record = json.loads(json.dumps(transcript(WON, step=3)))
    assert list(record)[:2] == ["step", "id"]
    assert (record["environment"], record["task"], record["end"], record["error"]) == (
        "number_guess",
        9,
        "terminated",
        None,
    )
    (seat,) = record["seats"]
    assert (seat["seat"], seat["policy"], seat["reward"], seat["prompt_tokens"], seat["action_tokens"]) == (
        "agent",
        "p",
        1.0,
        6,
        4,
    )
    first, second = seat["turns"]
    assert first["messages"] == [{"role": "user", "content": "guess 1-7"}]
    assert (first["text"], first["reward"], first["logprob"], first["end"]) == ("4", 0.0, -1.0, "stop")
    assert (second["snapshot"], second["snapshot_step"], second["seed"], second["reward"]) == ("snap-3", 3, 5, 1.0)


def test_a_transcript_can_be_read():
    assert transcript_text(transcript(WON)).splitlines() == [
        "train-0-0-0  number_guess  terminated",
        "  agent  reward 1  policy p  snapshot snap-3",
        "    user: guess 1-7",
        "    agent> 4    [2 tokens]",
        "    user: higher",
        "    agent> 6    [2 tokens, reward 1]",
    ]


def test_failures_limits_and_frozen_seats_show():
    frozen = Trajectory(seat="other", policy=None, turns=(), end=EpisodeEnd.FAILED, trainable=False)
    failed = episode(
        turn("guess", "4", end=TurnEnd.ENV_ERROR), end=EpisodeEnd.FAILED, error="it broke", others=(frozen,)
    )
    text = transcripts_text([failed, episode(turn("guess", "44", end=TurnEnd.LENGTH))])
    assert "  error: it broke" in text
    assert "[2 tokens, env error]" in text
    assert "[2 tokens, length]" in text
    assert "  other  reward 0  frozen" in text


def test_metrics_count_trainable_seats_of_valid_episodes_only():
    frozen = Trajectory(
        seat="b", policy="old", turns=(turn("x", "y", reward=9.0),), end=EpisodeEnd.TERMINATED, trainable=False
    )
    lost = episode(turn("guess", "1", tokens=4), id="e2", end=EpisodeEnd.TRUNCATED, others=(frozen,))
    failed = episode(turn("guess", "1", reward=5.0), id="e3", end=EpisodeEnd.FAILED, error="broke")
    metrics = rollout_metrics([Group(task=TASK, episodes=(WON, lost, failed))])
    assert metrics == {
        "episodes": 3,
        "failed": 1,
        "truncated": 0.5,
        "forfeited": 0,
        "reward": 0.5,
        "turns": 1.5,
        "action_tokens": 8,
        "tokens_per_turn": 8 / 3,
        "env/tries": 2.0,
    }


def test_several_seats_have_rewards_of_their_own():
    other = Trajectory(seat="o", policy="q", turns=(turn("x", "y", reward=-1.0),), end=EpisodeEnd.TERMINATED)
    metrics = rollout_metrics([Group(task=TASK, episodes=(episode(turn("x", "y", reward=1.0), others=(other,)),))])
    assert (metrics["reward/agent"], metrics["reward/o"], metrics["reward"]) == (1.0, -1.0, 0.0)


def test_no_valid_episode_gives_numbers_all_the_same():
    failed = episode(end=EpisodeEnd.FAILED, error="broke")
    assert rollout_metrics([Group(task=TASK, episodes=(failed,))])["reward"] == 0.0
