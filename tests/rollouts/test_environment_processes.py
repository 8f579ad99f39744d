"""Environments in processes of their own: who fails with a process, what comes back, what is closed."""

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path

import psutil
import pytest

from tinker_actors.actors import Mesh, RestartPolicy
from tinker_actors.coordinator import EpisodeLimits
from tinker_actors.environments import EnvironmentSpec, load_environment
from tinker_actors.errors import ConfigError
from tinker_actors.rollouts import RolloutWorker, ScriptedSeat, collect, plan_groups
from tinker_actors.rollouts.pools import EnvironmentPool

HOSTED = str(Path(__file__).with_name("hosted_environment.py"))
FINE, KILLS, HANGS, RAISES, BLOCKS = range(5)


def answer(messages):
    return messages[-1].content[-1]


def plan(*tasks, group_size=2, step=0, limits=None):
    return plan_groups(
        environment="hosted",
        run_seed=0,
        phase="train",
        step=step,
        groups=len(tasks),
        group_size=group_size,
        seats={"agent": ScriptedSeat(function=f"{__name__}:answer")},
        tasks=tasks,
        limits=limits or EpisodeLimits(turn_seconds=20.0),
    )


async def worker(mesh, name, *, nodes=(1,), isolation=None, node=0, **options):
    return await mesh.spawn(
        RolloutWorker,
        environment=EnvironmentSpec(source=f"{HOSTED}:{name}", options=options),
        tokenizer="tiny-llama",
        isolation=isolation,
        environment_nodes=nodes,
        node=node,
        restart=RestartPolicy.on_failure(),
    )


async def test_instances_live_in_the_pools_processes_and_play_as_they_would_here():
    async with Mesh(nodes=3) as mesh:
        there = await collect([await worker(mesh, "Hosted", nodes=(1, 2))], plan(10, 20, 30, 3))
        pids = set(mesh.pids.values())
    async with Mesh() as mesh:
        here = await collect([await worker(mesh, "Hosted", nodes=(), isolation="thread")], plan(10, 20, 30, 3))
    assert {episode.metrics["pid"] for group in there.complete for episode in group.episodes} == pids
    rewards = [[episode.trajectory("agent").reward for episode in group.episodes] for group in there.complete]
    assert rewards == [[episode.trajectory("agent").reward for episode in group.episodes] for group in here.complete]
    assert [episode.error for episode in there.failures] == [episode.error for episode in here.failures]
    assert "ValueError: no such move (hosted_environment.py:" in there.failures[0].error


async def test_a_process_that_dies_fails_its_own_episodes_with_its_last_words_and_comes_back():
    async with Mesh(nodes=3) as mesh:
        player = await worker(mesh, "Hosted", nodes=(1, 2))
        # episodes go to the processes in turn: the first of the four kills its own, which holds the third as well
        collected = await asyncio.wait_for(collect([player], plan(KILLS, FINE, 10, 20, group_size=1)), 120)
        again = await asyncio.wait_for(collect([player], plan(30, 40, 50, 60, step=1)), 120)
    assert [bool(group.failed) for group in collected.groups] in (
        [True, False, True, False],
        [True, False, False, False],
    )
    error = collected.failures[0].error
    assert "hosted: step after seat 'agent', turn 1: the environment's process died" in error
    assert "the end of its log: " in error
    assert error.endswith("last words")
    assert collected.lost == 0
    assert not again.failures
    assert len({episode.metrics["pid"] for episode in again.episodes}) == 2


@pytest.mark.slow
async def test_a_process_whose_event_loop_is_stuck_is_replaced_and_the_others_play_on():
    limits = EpisodeLimits(turn_seconds=5.0, close_seconds=0.2)
    async with Mesh(nodes=3) as mesh:
        player = await worker(mesh, "Blocking", nodes=(1, 2))
        before = {index: psutil.Process(pid) for index, pid in mesh.pids.items()}
        collected = await asyncio.wait_for(collect([player], plan(BLOCKS, 10, group_size=1, limits=limits)), 120)
        assert [bool(group.failed) for group in collected.groups] == [True, False]
        gone, _ = await asyncio.to_thread(psutil.wait_procs, [before[1]], 60)
        assert gone
        assert before[2].is_running()
        again = await asyncio.wait_for(collect([player], plan(10, 20, 30, step=1)), 120)
    assert not again.failures


async def test_a_stuck_instance_costs_its_own_episode_and_its_process_is_replaced():
    limits = EpisodeLimits(turn_seconds=5.0, close_seconds=0.2)
    async with Mesh(nodes=2) as mesh:
        player = await worker(mesh, "Hosted")
        old = psutil.Process(mesh.pids[1])
        collected = await asyncio.wait_for(collect([player], plan(HANGS, 10, 20, group_size=1, limits=limits)), 120)
        await asyncio.to_thread(old.wait, 60)
        again = await asyncio.wait_for(collect([player], plan(10, step=1)), 120)
        assert mesh.pids[1] != old.pid
    (failure,) = collected.failures
    assert "not done in time (turn_seconds 5)" in failure.error
    assert len(collected.complete) == 2
    assert not again.failures


async def test_every_instance_is_closed_once(tmp_path):
    notes = tmp_path / "closes"
    async with Mesh(nodes=2) as mesh:
        player = await worker(mesh, "Hosted", notes=str(notes))
        await collect([player], plan(10, 20, RAISES))
        assert len(notes.read_text().splitlines()) == 6


async def test_the_instances_of_a_worker_that_is_killed_are_closed_and_its_episodes_played_again(tmp_path):
    notes = tmp_path / "closes"
    async with Mesh(nodes=3) as mesh:
        player = await worker(mesh, "Gated", nodes=(2,), node=1, notes=str(notes))
        os.mkfifo(tmp_path / "begun")
        gate = os.open(tmp_path / "begun", os.O_RDWR)
        playing = asyncio.create_task(collect([player], plan(10, 20)))
        await asyncio.to_thread(os.read, gate, 1)
        os.close(gate)
        os.kill(mesh.pids[1], signal.SIGKILL)
        collected = await asyncio.wait_for(playing, 120)
        assert collected.lost == 1
        assert not collected.failures
    lines = notes.read_text().split()
    assert lines.count("open") == lines.count("close") > 4


async def test_reusable_instances_play_on_and_are_closed_once_at_the_end(tmp_path):
    notes = tmp_path / "closes"
    async with Mesh(nodes=2) as mesh:
        player = await worker(mesh, "Reused", notes=str(notes))
        for step in range(3):
            played = await collect([player], plan(10, 20, step=step))
            assert {episode.metrics["resets"] for episode in played.episodes} == {step + 1.0}
        assert not notes.exists()
        await collect([player], plan(RAISES, group_size=1, step=3))
        assert len(notes.read_text().splitlines()) == 1  # one whose call failed isn't trusted with another episode
    assert Counter(notes.read_text().split()).total() == 4


@pytest.mark.parametrize("isolation", ["inline", "thread", "process"])
async def test_episodes_that_begin_together_are_reset_together(isolation):
    async with Mesh(nodes=2) as mesh:
        player = await worker(mesh, "Together", isolation=isolation)
        collected = await collect([player], plan(10, 9, 20, group_size=3))
    first = [
        episode.trajectory("agent").turns[0].messages[0].content
        for group in collected.complete
        for episode in group.episodes
    ]
    assert [text.partition(" ")[2] for text in first] == ["task 10"] * 3 + ["task 20"] * 3
    sizes = {int(text.partition(" ")[0]) for text in first}
    # to another process they go one by one, and how close together depends on the machine
    assert max(sizes) > 1 if isolation == "process" else sizes == {9}
    assert all("reset: ValueError: no such task" in episode.error for episode in collected.failures)


async def test_processes_need_nodes():
    async with Mesh() as mesh:
        with pytest.raises(ConfigError, match="environment_nodes are needed"):
            await worker(mesh, "Hosted", nodes=())


async def test_tools_of_an_instance_elsewhere_are_told():
    async with Mesh(nodes=2) as mesh:
        pool = await EnvironmentPool.start(mesh, load_environment(f"{HOSTED}:Told"), (1,))
        live = await pool.open(luck=0, evaluating=False, seconds=20.0)
        await live.reset(3)
        assert live.tools["agent"].schemas == ({"name": "t1"},)
        await live.close()
