"""Lockstep: who waits for whom, what shares a batch, and what happens to those that fall behind or come again."""

from __future__ import annotations

import asyncio
import math
import random
from typing import Any

import pytest
from tests.coordinator.skipped_time import in_skipped_time

from tinker_actors.coordinator import EpisodeClock, EpisodeLimits, run_episode
from tinker_actors.data import Episode, Task, TurnEnd
from tinker_actors.environments import Agent, Environment, Step
from tinker_actors.errors import ContextOverflowError, SamplingError
from tinker_actors.rollouts import EpisodeSampler, Gate
from tinker_actors.sampling import Sample, SamplingParams, SamplingReply, SamplingRequest

SNAPSHOT = "tinker://p/sampler_weights/000001"
NEWER = "tinker://p/sampler_weights/000002"
FROZEN = "tinker://p/sampler_weights/000000"


class Batches:
    """Stands for the ref of a sampler: remembers what it was asked together, and by which snapshots."""

    def __init__(self) -> None:
        self.stream = self
        self.batches: list[list[int]] = []
        self.snapshots: list[list[str]] = []
        self.seconds = 0.0

    async def sample_together(self, requests):
        self.batches.append([request.prompt[0] for request in requests])
        self.snapshots.append([request.snapshot for request in requests])
        await asyncio.sleep(self.seconds)
        for position, request in enumerate(requests):
            await asyncio.sleep(0)
            if request.prompt[0] == 13:
                yield ((position, ContextOverflowError("the prompt has 13 tokens; the context holds 12")),)
            else:
                sample = Sample(tokens=(request.prompt[0],), logprobs=(-1.0,), end=TurnEnd.STOP, text="")
                reply = SamplingReply(
                    samples=(sample,), snapshot=request.snapshot, snapshot_step=0, prompt_tokens=1, seed=0
                )
                yield ((position, reply),)


class Local:
    """Stands for the ref of a gate in this process."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self.tell = self
        self.told: list[asyncio.Task[None]] = []
        self.sample = gate.sample

    def leave(self, cohort: str, member: str) -> None:
        self.told.append(asyncio.create_task(self._gate.leave(cohort, member)))


async def opened(*members: str, **options) -> tuple[Gate, Batches]:
    gate, sampler = Gate(), Batches()
    await gate.on_start()
    await gate.open(sampler, {"c": members}, **options)
    return gate, sampler


def ask(token: int, snapshot: str = SNAPSHOT) -> SamplingRequest:
    return SamplingRequest(prompt=(token,), snapshot=snapshot, params=SamplingParams(seed=token))


async def settled() -> None:
    """Let everything run that can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_batches_hold_the_whole_cohort_in_the_plans_order_whenever_its_episodes_ask():
    for seed in range(5):
        names = [f"e{number}" for number in range(6)]
        gate, sampler = await opened(*names)
        draw = random.Random(seed)

        async def play(number: int, gate: Gate = gate, draw: random.Random = draw) -> None:
            own = EpisodeSampler(Local(gate), "c", f"e{number}", EpisodeClock())
            for turn in range(1 + number % 3):
                for _ in range(draw.randrange(6)):
                    await asyncio.sleep(0)
                await own.sample(ask(10 * turn + number))
            own.leave()

        await asyncio.wait_for(asyncio.gather(*map(play, draw.sample(range(6), 6))), 60)
        assert sampler.batches == [[0, 1, 2, 3, 4, 5], [11, 12, 14, 15], [22, 25]]


async def test_seats_that_act_at_the_same_time_ask_together():
    gate, sampler = await opened("a", "b")
    first, second = (EpisodeSampler(Local(gate), "c", name, EpisodeClock()) for name in "ab")
    async with asyncio.TaskGroup() as group:
        replies = [group.create_task(first.sample(ask(token))) for token in (1, 2)]
        group.create_task(second.sample(ask(3)))
    assert sampler.batches == [[1, 2, 3]]
    assert [task.result().samples[0].tokens for task in replies] == [(1,), (2,)]


async def test_what_a_seat_asks_while_the_gate_answers_goes_there_next():
    gate, sampler = await opened("a", "b")
    first, second = (EpisodeSampler(Local(gate), "c", name, EpisodeClock()) for name in "ab")
    replies = [asyncio.create_task(first.sample(ask(1)))]
    await settled()
    for token in (2, 3):
        replies.append(asyncio.create_task(first.sample(ask(token))))
        await settled()
    given_up = replies.pop()
    given_up.cancel()
    other = asyncio.create_task(second.sample(ask(9)))
    assert [(await reply).samples[0].tokens for reply in (replies[0], other)] == [(1,), (9,)]
    second.leave()
    assert (await replies[1]).samples[0].tokens == (2,)
    assert sampler.batches == [[1, 9], [2]]


async def test_an_episode_that_is_played_again_gets_its_answers_again_without_being_sampled():
    gate, sampler = await opened("a", "b")
    waiting = asyncio.create_task(gate.sample("c", "b", 0, (ask(2),)))
    before = await gate.sample("c", "a", 0, (ask(1),))
    await waiting
    assert await gate.sample("c", "a", 0, (ask(1),)) == before  # its worker died before its second turn
    turn = [asyncio.create_task(gate.sample("c", name, 1, (ask(token),))) for name, token in (("a", 11), ("b", 12))]
    await asyncio.gather(*turn)
    assert sampler.batches == [[1, 2], [11, 12]]


async def test_an_episode_that_comes_again_with_another_request_while_it_is_sampled_holds_up_nobody():
    gate, sampler = await opened("a", "b")
    asked = [asyncio.create_task(gate.sample("c", name, 0, (ask(token),))) for name, token in (("a", 1), ("b", 2))]
    sampler.seconds = 0.05
    await settled()
    again = asyncio.create_task(gate.sample("c", "a", 0, (ask(3),)))
    await asyncio.gather(*asked)
    await gate.leave("c", "b")
    assert (await asyncio.wait_for(again, 10))[0].samples[0].tokens == (3,)
    assert sampler.batches == [[1, 2], [3]]


async def test_a_failure_is_that_of_the_request_alone():
    gate, _ = await opened("a", "b")
    first, second = (EpisodeSampler(Local(gate), "c", name, EpisodeClock()) for name in "ab")
    overflown = asyncio.create_task(first.sample(ask(13)))
    assert (await second.sample(ask(2))).samples[0].tokens == (2,)
    with pytest.raises(ContextOverflowError, match="13 tokens"):
        await overflown


class Waits(Environment):
    """Two turns; its first step takes as long as it is told."""

    max_turns = 2

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def reset(self, seed: int) -> str:
        return "go"

    async def step(self, action: str) -> Step:
        await asyncio.sleep(self._seconds)
        self._seconds = 0.0
        return Step(observation="go", reward=1.0)


class Asks(Agent):
    """An agent that asks for its number and the turn's."""

    def __init__(self, sampler: EpisodeSampler, number: int) -> None:
        self._sampler, self._number, self._turn = sampler, number, 0

    async def act(self, messages: Any) -> str:
        self._turn += 1
        await self._sampler.sample(ask(100 * self._turn + self._number))
        return "a"


async def play_together(limits: EpisodeLimits, *steps: float, sampler: float = 0.0) -> tuple[list[Episode], Batches]:
    """Episodes whose first steps take these seconds, sampled by a sampler that takes as long."""
    gate, batches = await opened(*map(str, range(len(steps))))
    batches.seconds = sampler

    async def play(number: int, seconds: float) -> Episode:
        clock = EpisodeClock()
        own = EpisodeSampler(Local(gate), "c", str(number), clock)
        task = Task(environment="waits", seed=0)
        agents = {"agent": Asks(own, number)}
        try:
            return await run_episode(Waits(seconds), agents, task=task, id=str(number), limits=limits, clock=clock)
        finally:
            own.leave()

    return await asyncio.wait_for(asyncio.gather(*map(play, range(len(steps)), steps)), 30), batches


@in_skipped_time
async def test_only_the_episode_that_takes_too_long_fails_however_long_the_others_wait_for_it():
    episodes, sampler = await play_together(EpisodeLimits(turn_seconds=0.5), 99.0, 0.0, 0.0)
    assert [episode.end.is_error for episode in episodes] == [True, False, False]
    assert sampler.batches == [[100, 101, 102], [201, 202]]


@in_skipped_time
async def test_an_episode_that_comes_late_within_its_limits_is_sampled_with_the_others():
    limits = EpisodeLimits(turn_seconds=2.0, episode_seconds=2.0)
    episodes, sampler = await play_together(limits, 1.2, 0.0)  # longer than half of a turn
    assert not any(episode.end.is_error for episode in episodes)
    assert sampler.batches == [[100, 101], [200, 201]]


@in_skipped_time
async def test_a_slow_sampler_fails_no_episode():
    episodes, _ = await play_together(EpisodeLimits(turn_seconds=0.4, episode_seconds=0.7), 0.0, 0.0, sampler=0.6)
    assert not any(episode.end.is_error for episode in episodes)


@in_skipped_time
async def test_a_gate_is_idle_while_episodes_are_waited_for_and_not_while_they_are_sampled():
    gate, sampler = await opened("a", "b")
    sampler.seconds = 0.2
    waiting = asyncio.create_task(gate.sample("c", "a", 0, (ask(1),)))
    await asyncio.sleep(0.05)
    assert await gate.idle(["c"]) >= 0.04
    coming = asyncio.create_task(gate.sample("c", "b", 0, (ask(2),)))
    await asyncio.sleep(0.05)
    assert await gate.idle(["c"]) == 0
    await asyncio.gather(waiting, coming)
    assert await gate.idle(["d"]) == math.inf


async def test_an_episode_that_ends_while_the_others_wait_releases_them():
    gate, sampler = await opened("a", "b", "c")
    waiting = [asyncio.create_task(gate.sample("c", name, 0, (ask(token),))) for name, token in (("a", 1), ("b", 2))]
    await settled()
    assert sampler.batches == []
    await gate.leave("c", "c")
    await asyncio.wait_for(asyncio.gather(*waiting), 60)
    assert sampler.batches == [[1, 2]]


async def test_a_cohort_that_follows_takes_the_newest_snapshot_from_its_next_action_on():
    gate, sampler = await opened("a", follow=(SNAPSHOT,))
    await gate.sample("c", "a", 0, (ask(1), ask(2, FROZEN)))
    await gate.serve(NEWER)
    (reply, _) = await gate.sample("c", "a", 1, (ask(3), ask(4, FROZEN)))
    assert sampler.snapshots == [[SNAPSHOT, FROZEN], [NEWER, FROZEN]]
    assert isinstance(reply, SamplingReply)
    assert reply.snapshot == NEWER


async def test_a_cohort_that_is_not_open_is_named():
    gate, _ = await opened("a")
    with pytest.raises(SamplingError, match=r"cohort 'd' of episode 'a' is not open; those that are: c"):
        await gate.sample("d", "a", 0, (ask(1),))
    with pytest.raises(SamplingError, match=r"episode 'z' is not of this cohort"):
        await gate.sample("c", "z", 0, (ask(1),))
