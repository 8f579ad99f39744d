"""Seats of one environment filled by different policies, by one policy, and by frozen opponents."""

import asyncio
import random
from pathlib import Path

from tinker_actors.data import Group, TurnEnd, rl_datums
from tinker_actors.environments import EnvironmentSpec
from tinker_actors.models import load_tokenizer
from tinker_actors.rollouts import (
    DemonstrationSeat,
    PolicySeat,
    RolloutWorker,
    collect,
    plan_groups,
    rollout_metrics,
    transcript,
    transcript_text,
)
from tinker_actors.sampling.requests import Sample, SamplingParams, SamplingReply

DUEL = str(Path(__file__).with_name("duel_environment.py"))


class SeededSampler:
    def __init__(self):
        self.tokenizer = load_tokenizer("tiny-llama")
        self.requests = []

    async def sample(self, request):
        self.requests.append(request)
        await asyncio.sleep(0)
        text = str(random.Random(request.params.seed).randrange(1, 8))
        tokens = (*self.tokenizer.encode(text), self.tokenizer.eos_id)
        sample = Sample(tokens=tokens, logprobs=(-1.9,) * len(tokens), end=TurnEnd.STOP, text=text)
        return SamplingReply(
            samples=(sample,), snapshot=request.snapshot, snapshot_step=0, prompt_tokens=len(request.prompt), seed=0
        )


class InProcess:
    def __init__(self, worker):
        self.stream, self.ready = worker, worker.ready


def policy(sampler, name, *, trainable=True):
    return PolicySeat(
        sampler=sampler, policy=name, snapshot=f"{name}/1", params=SamplingParams(max_tokens=4), trainable=trainable
    )


async def played(**seats) -> Group:
    worker = RolloutWorker(environment=EnvironmentSpec(source=DUEL), tokenizer="tiny-llama")
    await worker.on_start()
    plan = plan_groups(environment="duel", run_seed=0, phase="train", step=0, groups=1, group_size=6, seats=seats)
    (group,) = (await collect([InProcess(worker)], plan)).groups
    assert group.failed == ()
    return group


async def test_each_seat_has_its_own_policy_trajectory_and_rewards():
    sampler = SeededSampler()
    group = await played(a=policy(sampler, "left"), b=policy(sampler, "right"))
    assert group.trainable_seats == ("a", "b")
    assert {request.snapshot for request in sampler.requests} == {"left/1", "right/1"}
    for episode in group.episodes:
        a, b = episode.trajectory("a"), episode.trajectory("b")
        assert (a.policy, b.policy) == ("left", "right")
        lower, other = (a, b) if len(a.turns) == 2 else (b, a)
        assert (len(lower.turns), len(other.turns)) == (2, 1)
        last = {"a": 1.0, "b": 2.0}
        assert [turn.reward for turn in lower.turns] == [-1.0, last[lower.seat]]
        assert [turn.reward for turn in other.turns] == [last[other.seat]]
        shown = [message.content for turn in a.turns for message in turn.messages]
        assert shown[0] == "a, a number"
        assert all(not text.startswith("b") for text in shown)


async def test_self_play_gives_each_seat_luck_of_its_own():
    sampler = SeededSampler()
    group = await played(a=policy(sampler, "self"), b=policy(sampler, "self"))
    seeds = [turn.sampling.seed for episode in group.episodes for entry in episode.trajectories for turn in entry.turns]
    assert len(set(seeds)) == len(seeds) == 18
    assert any(
        episode.trajectory("a").turns[0].text != episode.trajectory("b").turns[0].text for episode in group.episodes
    )


async def test_a_frozen_opponent_is_logged_and_neither_trained_nor_counted():
    sampler = SeededSampler()
    group = await played(a=policy(sampler, "learner"), b=policy(sampler, "old", trainable=False))
    assert group.trainable_seats == ("a",)
    assert group.trajectories("b") == ()
    assert sum(len(rl_datums(entry, 1.0)) for entry in group.trajectories("a")) == 6
    mine = [episode.trajectory("a").reward for episode in group.episodes]
    assert rollout_metrics([group])["reward"] == sum(mine) / 6
    text = transcript_text(transcript(group.episodes[0]))
    assert "policy old" in text
    assert "frozen" in text


async def test_demonstrations_are_asked_for_the_seat_that_acts():
    group = await played(a=DemonstrationSeat(), b=DemonstrationSeat(trainable=False))
    episode = group.episodes[0]
    assert [turn.text for turn in episode.trajectory("a").turns] == ["1", "1"]
    assert [turn.text for turn in episode.trajectory("b").turns] == ["2"]
