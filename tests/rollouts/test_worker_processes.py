"""Workers in processes of their own, which are killed."""

import asyncio
import os
import random
import signal
from pathlib import Path

from tinker_actors.actors import Actor, Mesh, RestartPolicy, concurrent
from tinker_actors.data import TurnEnd
from tinker_actors.environments import EnvironmentSpec
from tinker_actors.models import load_tokenizer
from tinker_actors.rollouts import PolicySeat, RolloutWorker, WorkerLost, collect, plan_groups
from tinker_actors.sampling.requests import Sample, SamplingParams, SamplingReply

TROUBLE = str(Path(__file__).with_name("trouble_environment.py"))
FINE, KILLS = 0, 3


class SeededSampler(Actor):
    """Samples digits by the request's seed; kills a process once it has been asked `kill_at` times."""

    def __init__(self, pid=None, kill_at=0):
        self.pid, self.kill_at, self.asked = pid, kill_at, 0
        self.tokenizer = load_tokenizer("tiny-llama")

    @concurrent
    async def sample(self, request):
        self.asked += 1
        if self.asked == self.kill_at:
            os.kill(self.pid, signal.SIGKILL)
        text = str(random.Random(f"{request.params.seed} {request.prompt}").randrange(1, 8))
        tokens = (*self.tokenizer.encode(text), self.tokenizer.eos_id)
        sample = Sample(tokens=tokens, logprobs=(-1.9,) * len(tokens), end=TurnEnd.STOP, text=text)
        return SamplingReply(
            samples=(sample,), snapshot=request.snapshot, snapshot_step=0, prompt_tokens=len(request.prompt), seed=0
        )


async def workers(mesh, source, count=2):
    return [
        await mesh.spawn(
            RolloutWorker,
            environment=EnvironmentSpec(source=source),
            tokenizer="tiny-llama",
            name=f"worker-{number}",
            restart=RestartPolicy.on_failure(max_restarts=5),
        )
        for number in range(count)
    ]


def plan(sampler, environment, *, groups, tasks=None):
    seat = PolicySeat(sampler=sampler, policy="p", snapshot="snap", params=SamplingParams(max_tokens=4))
    return plan_groups(
        environment=environment,
        run_seed=0,
        phase="train",
        step=0,
        groups=groups,
        group_size=4,
        seats={"agent": seat},
        tasks=tasks,
    )


async def test_a_killed_worker_process_changes_nothing_in_the_result():
    async with Mesh() as alone:
        sampler = await alone.spawn(SeededSampler)
        undisturbed = await collect(await workers(alone, "number_guess", 1), plan(sampler, "number_guess", groups=12))
    events = []
    async with Mesh(nodes=3) as mesh:
        sampler = await mesh.spawn(SeededSampler, mesh.pids[1], 60, node=0)
        wanted = plan(sampler, "number_guess", groups=12)
        collected = await asyncio.wait_for(
            collect(await workers(mesh, "number_guess"), wanted, on_event=events.append), 120
        )
    assert collected.groups == undisturbed.groups
    assert collected.lost == 1
    (lost,) = [event for event in events if isinstance(event, WorkerLost)]
    assert lost.worker == "worker-0"
    assert 0 < lost.unfinished == collected.retried <= 24


async def test_an_environment_that_kills_its_process_costs_its_own_group_only():
    tasks = [10 * group + (KILLS if group == 4 else FINE) for group in range(8)]
    async with Mesh(nodes=3) as mesh:
        sampler = await mesh.spawn(SeededSampler, node=0)
        wanted = plan(sampler, "trouble_environment", groups=8, tasks=tasks)
        collected = await asyncio.wait_for(collect(await workers(mesh, TROUBLE), wanted), 100)
    assert {episode.task.seed for episode in collected.failures} == {43}
    assert all("worker lost in 3 of 3 attempts" in episode.error for episode in collected.failures)
    assert len(collected.complete) == 7
    assert all(episode.metrics == {"heavy": 0.0} for group in collected.complete for episode in group.episodes)
