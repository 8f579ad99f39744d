"""Lockstep: who waits for whom, what shares a batch, and what happens to those that fall behind or come again."""

from __future__ import annotations

import asyncio
import random

import pytest

from tinker_actors.data import TurnEnd
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

    async def sample_together(self, requests):
        self.batches.append([request.prompt[0] for request in requests])
        self.snapshots.append([request.snapshot for request in requests])
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


async def opened(*members: str, patience: float = 30.0, **options) -> tuple[Gate, Batches]:
    gate, sampler = Gate(patience=patience), Batches()
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
            own = EpisodeSampler(Local(gate), "c", f"e{number}")
            for turn in range(1 + number % 3):
                for _ in range(draw.randrange(6)):
                    await asyncio.sleep(0)
                await own.sample(ask(10 * turn + number))
            own.leave()

        await asyncio.wait_for(asyncio.gather(*map(play, draw.sample(range(6), 6))), 10)
        assert sampler.batches == [[0, 1, 2, 3, 4, 5], [11, 12, 14, 15], [22, 25]]
        assert await gate.close(["c"]) == 0


async def test_seats_that_act_at_the_same_time_ask_together():
    gate, sampler = await opened("a", "b")
    first, second = (EpisodeSampler(Local(gate), "c", name) for name in "ab")
    async with asyncio.TaskGroup() as group:
        replies = [group.create_task(first.sample(ask(token))) for token in (1, 2)]
        group.create_task(second.sample(ask(3)))
    assert sampler.batches == [[1, 2, 3]]
    assert [task.result().samples[0].tokens for task in replies] == [(1,), (2,)]


async def test_an_episode_that_is_played_again_gets_its_answers_again_without_being_sampled():
    gate, sampler = await opened("a", "b")
    waiting = asyncio.create_task(gate.sample("c", "b", 0, (ask(2),)))
    before = await gate.sample("c", "a", 0, (ask(1),))
    await waiting
    assert await gate.sample("c", "a", 0, (ask(1),)) == before  # its worker died before its second turn
    turn = [asyncio.create_task(gate.sample("c", name, 1, (ask(token),))) for name, token in (("a", 11), ("b", 12))]
    await asyncio.gather(*turn)
    assert sampler.batches == [[1, 2], [11, 12]]


async def test_a_failure_is_that_of_the_request_alone():
    gate, _ = await opened("a", "b")
    first, second = (EpisodeSampler(Local(gate), "c", name) for name in "ab")
    overflown = asyncio.create_task(first.sample(ask(13)))
    assert (await second.sample(ask(2))).samples[0].tokens == (2,)
    with pytest.raises(ContextOverflowError, match="13 tokens"):
        await overflown


async def test_the_others_go_on_without_an_episode_that_does_not_come():
    gate, sampler = await opened("slow", "a", "b", patience=0.05)
    await asyncio.gather(*(gate.sample("c", name, 0, (ask(token),)) for name, token in (("a", 1), ("b", 2))))
    await gate.sample("c", "slow", 0, (ask(7),))  # by itself
    await asyncio.gather(*(gate.sample("c", name, 1, (ask(token),)) for name, token in (("a", 3), ("b", 4))))
    assert sampler.batches == [[1, 2], [7], [3, 4]]
    assert await gate.close(["c"]) == 1


async def test_an_episode_that_ends_while_the_others_wait_releases_them():
    gate, sampler = await opened("a", "b", "c")
    waiting = [asyncio.create_task(gate.sample("c", name, 0, (ask(token),))) for name, token in (("a", 1), ("b", 2))]
    await settled()
    assert sampler.batches == []
    await gate.leave("c", "c")
    await asyncio.wait_for(asyncio.gather(*waiting), 5)
    assert sampler.batches == [[1, 2]]


async def test_a_cohort_that_follows_takes_the_newest_snapshot_from_its_next_action_on():
    gate, sampler = await opened("a", follow=SNAPSHOT)
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
