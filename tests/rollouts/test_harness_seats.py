"""Harnesses in workers: one server for all of a worker's episodes, whose data is that of any other policy's seat."""

import asyncio
from pathlib import Path

import httpx
import pytest
from test_workers import InProcess, SeededSampler, plan

from tinker_actors.data import rl_datums
from tinker_actors.environments import EnvironmentSpec
from tinker_actors.errors import ConfigError
from tinker_actors.rollouts import HarnessSeat, RolloutWorker, collect
from tinker_actors.sampling.requests import SamplingParams

FILE = Path(__file__).with_name("harness_seat.py")


def seat(sampler, **options):
    params = SamplingParams(max_tokens=4)
    settings = {"harness": f"{FILE}:play", "options": options}
    return HarnessSeat(sampler=sampler, policy="p", snapshot="snap", params=params, **settings)


async def played(**options):
    worker = RolloutWorker(environment=EnvironmentSpec(source="number_guess"), tokenizer="tiny-llama")
    await worker.on_start()
    try:
        collected = await collect([InProcess(worker)], plan(seat(SeededSampler(), **options)))
        url = worker._endpoint.url
        assert url is not None
    finally:
        await worker.on_stop()
    async with httpx.AsyncClient() as http:
        with pytest.raises(httpx.ConnectError):
            await http.get(f"{url}/v1/models")
    return collected


async def test_all_episodes_of_a_worker_share_a_server_that_ends_with_it():
    collected = await played()
    episodes = [episode for group in collected.groups for episode in group.episodes]
    assert len(episodes) == 16
    for episode in episodes:
        assert episode.error is None
        trajectory = episode.trajectory("agent")
        assert trajectory.policy == "p"
        (datum,) = rl_datums(trajectory, 1.0)
        assert datum.sampled_tokens == trajectory.action_tokens > 0
        assert episode.metrics["harness_calls"] == len(trajectory.turns)


async def test_results_depend_on_the_seeds_alone_however_the_calls_are_interleaved():
    one, other = await played(extra=1), await played(extra=1)

    def texts(collected):
        return [[turn.text for turn in each.trajectory("agent").turns] for each in _episodes(collected)]

    assert texts(one) == texts(other)
    assert len({tuple(entry) for entry in texts(one)}) > 1


def _episodes(collected):
    return [episode for group in collected.groups for episode in group.episodes]


def test_a_seat_that_is_trained_on_can_not_honour_what_the_harness_asks():
    with pytest.raises(ConfigError, match="difference is 'honour'"):
        HarnessSeat(sampler=SeededSampler(), policy="p", snapshot="s", command=("x",), difference="honour")
    with pytest.raises(ConfigError, match="one of them is needed"):
        HarnessSeat(sampler=SeededSampler(), policy="p", snapshot="s")


async def test_a_worker_without_harnesses_opens_no_port():
    worker = RolloutWorker(environment=EnvironmentSpec(source="number_guess"), tokenizer="tiny-llama")
    await worker.on_start()
    await asyncio.sleep(0)
    assert worker._endpoint.url is None
    await worker.on_stop()


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({"params": SamplingParams(max_tokens=4, min_p=0.1)}, "min_p, penalties"),
        ({"max_prompt": 8}, "max_prompt is 8, but a harness makes its prompts itself"),
    ],
)
def test_a_seat_that_could_not_be_trained_or_bounded_as_it_says_is_refused(fields, refused):
    with pytest.raises(ConfigError, match=refused):
        HarnessSeat(sampler=SeededSampler, policy="p", snapshot="snap", harness="json:dumps", **fields)
