"""What a worker plays: isolation of episodes, limits, and results that depend on nothing but the plan's seeds."""

import asyncio
import random
from pathlib import Path

import pytest
from tests.coordinator.skipped_time import in_skipped_time

from tinker_actors.coordinator import EpisodeLimits
from tinker_actors.data import TurnEnd
from tinker_actors.environments import EnvironmentSpec
from tinker_actors.errors import ConfigError
from tinker_actors.models import load_tokenizer
from tinker_actors.rollouts import (
    DemonstrationSeat,
    PolicySeat,
    Retries,
    RolloutWorker,
    ScriptedSeat,
    collect,
    plan_groups,
)
from tinker_actors.sampling.requests import Sample, SamplingParams, SamplingReply

TROUBLE = str(Path(__file__).with_name("trouble_environment.py"))
FINE, SLEEPS, RAISES = range(3)


class SeededSampler:
    """Samples digits by the request's seed, as a policy that knows nothing; remembers how many asked at once."""

    def __init__(self):
        self.tokenizer = load_tokenizer("tiny-llama")
        self.asking = self.most = self.asked = 0

    async def sample(self, request):
        self.asked += 1
        self.asking += 1
        self.most = max(self.most, self.asking)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self.asking -= 1
        draw = random.Random(f"{request.params.seed} {request.prompt} {request.snapshot}")
        text = str(draw.randrange(1, 8))
        tokens = (*self.tokenizer.encode(text), self.tokenizer.eos_id)
        sample = Sample(tokens=tokens, logprobs=(-1.9,) * len(tokens), end=TurnEnd.STOP, text=text)
        return SamplingReply(
            samples=(sample,), snapshot=request.snapshot, snapshot_step=0, prompt_tokens=len(request.prompt), seed=0
        )


class InProcess:
    """Stands for the ref of a worker in this process."""

    def __init__(self, worker):
        self.stream, self.ready = worker, worker.ready


async def worker(source="number_guess", **settings):
    made = RolloutWorker(environment=EnvironmentSpec(source=source), tokenizer="tiny-llama", **settings)
    await made.on_start()
    return InProcess(made)


def policy_seat(sampler):
    return PolicySeat(sampler=sampler, policy="p", snapshot="snap", params=SamplingParams(max_tokens=4))


def plan(seat, *, environment="number_guess", groups=4, group_size=4, limits=None, tasks=None):
    return plan_groups(
        environment=environment,
        run_seed=0,
        phase="train",
        step=0,
        groups=groups,
        group_size=group_size,
        seats={"agent": seat},
        limits=limits,
        tasks=tasks,
    )


async def test_the_same_seed_gives_the_same_groups_for_any_number_of_workers():
    wanted = plan(policy_seat(SeededSampler()), groups=3, group_size=5)
    results = [await collect([await worker() for _ in range(count)], wanted) for count in (1, 2, 4)]
    assert results[0].groups == results[1].groups == results[2].groups
    for group in results[0].groups:
        first_actions = {episode.trajectories[0].turns[0].action for episode in group.episodes}
        assert len(first_actions) > 1
        assert len({episode.trajectories[0].turns[0].sampling.seed for episode in group.episodes}) == 5


async def test_episodes_of_an_assignment_ask_the_sampler_together_up_to_the_limit():
    sampler = SeededSampler()
    await collect([await worker()], plan(policy_seat(sampler), groups=10))
    assert sampler.most == 40
    limited = SeededSampler()
    await collect([await worker(max_concurrency=3)], plan(policy_seat(limited), groups=10))
    assert limited.most == 3


@in_skipped_time
async def test_one_environment_that_sleeps_and_one_that_raises_cost_only_their_groups():
    tasks = [SLEEPS if group == 5 else 10 * group + RAISES if group == 9 else 10 * group for group in range(32)]
    wanted = plan(
        policy_seat(SeededSampler()),
        environment="trouble_environment",
        groups=32,
        group_size=2,
        tasks=tasks,
        limits=EpisodeLimits(turn_seconds=1.0, episode_seconds=5.0),
    )
    workers = [await worker(TROUBLE), await worker(TROUBLE)]
    collected = await asyncio.wait_for(collect(workers, wanted), 60)
    assert len(collected.complete) == 30
    assert [group for group in range(32) if collected.groups[group].failed] == [5, 9]
    errors = [episode.error for episode in collected.failures]
    assert len(errors) == 4
    sleeping, raising = "step after seat 'agent', turn 0: not done in time", "turn 1: ValueError: no such move"
    assert all(sleeping in error for error in errors[:2])
    assert all(raising in error for error in errors[2:])
    assert all(error.startswith("trouble_environment: ") for error in errors)


async def test_an_episode_that_fails_leaves_the_rest_of_its_group_valid():
    """A grader that raises on one of four."""
    wanted = plan(ScriptedSeat(function="test_workers:answer_once_wrong"), environment="arithmetic", groups=1)
    answer_once_wrong.calls = 0
    (group,) = (await collect([await worker("arithmetic")], wanted)).groups
    assert (len(group.valid), len(group.failed)) == (3, 1)
    assert "seat 'agent', turn 0: ZeroDivisionError" in group.failed[0].error


def answer_once_wrong(messages):
    answer_once_wrong.calls += 1
    return str(1 / 0) if answer_once_wrong.calls == 2 else "1"


async def test_demonstrations_come_through_the_same_path():
    collected = await collect([await worker()], plan(DemonstrationSeat(), groups=2, group_size=8))
    entries = [episode.trajectories[0] for episode in collected.episodes]
    assert collected.failures == ()
    assert {turn.text for entry in entries for turn in entry.turns} <= set("1234567")
    assert all(len(turn.action) == 2 for entry in entries for turn in entry.turns)
    assert len({entry.turns[0].text for entry in entries}) > 3


async def test_a_constructor_that_raises_is_data():
    made = RolloutWorker(
        environment=EnvironmentSpec(source="number_guess", options={"low": 5, "high": 4}), tokenizer="tiny-llama"
    )
    await made.on_start()
    collected = await collect([InProcess(made)], plan(DemonstrationSeat(), groups=1))
    assert len(collected.failures) == 4
    assert collected.failures[0].error.startswith("number_guess: constructor: ConfigError: low is 5 and high is 4")


async def test_seats_that_do_not_fit_the_environment_are_raised_not_retried():
    wanted = plan_groups(
        environment="number_guess",
        run_seed=0,
        phase="train",
        step=0,
        groups=1,
        group_size=2,
        seats={"white": DemonstrationSeat()},
    )
    with pytest.raises(ConfigError, match=r"seats \['white'\]; NumberGuess has seats \['agent'\]"):
        await collect([await worker()], wanted)
    with pytest.raises(ConfigError, match="scripted seat 'nowhere:f' is not found"):
        await collect([await worker()], plan(ScriptedSeat(function="nowhere:f")))


async def test_leaving_a_workers_stream_cancels_its_episodes():
    one = await worker(TROUBLE)
    wanted = plan(policy_seat(SeededSampler()), environment="trouble_environment", groups=2, tasks=[FINE, SLEEPS])
    before = asyncio.all_tasks()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await collect([one], wanted, retries=Retries(silence_seconds=60))
    assert asyncio.all_tasks() == before


def test_a_worker_that_could_play_nothing_is_refused():
    with pytest.raises(ConfigError, match="max_concurrency is 0"):
        RolloutWorker(environment=EnvironmentSpec(source="number_guess"), tokenizer="tiny-llama", max_concurrency=0)
