"""Worker processes that are killed at each point of an episode: its rollout is played again, and the phase goes on."""

import asyncio
from pathlib import Path

from deadly_environment import POINTS

from tinker_actors.actors import Mesh, RestartPolicy
from tinker_actors.data import EpisodeEnd
from tinker_actors.environments import EnvironmentSpec
from tinker_actors.rollouts import RolloutWorker, ScriptedSeat, collect, plan_groups

DEADLY = str(Path(__file__).with_name("deadly_environment.py"))


async def test_a_process_that_is_killed_at_any_point_costs_no_episode(tmp_path):
    fine = 3
    async with Mesh(nodes=3, env={"DEADLY_MARKS": str(tmp_path)}) as mesh:
        workers = [
            await mesh.spawn(
                RolloutWorker,
                environment=EnvironmentSpec(source=DEADLY),
                tokenizer="tiny-llama",
                restart=RestartPolicy.on_failure(max_restarts=9),
            )
            for _ in range(2)
        ]
        plan = plan_groups(
            environment="deadly",
            run_seed=0,
            phase="train",
            step=0,
            groups=len(POINTS) + fine,
            group_size=2,
            seats=dict.fromkeys(("x", "o"), ScriptedSeat(function="deadly_environment:move")),
            tasks=range(len(POINTS) + fine),
        )
        collected = await asyncio.wait_for(collect(workers, plan), 100)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(POINTS)
    assert collected.lost >= 1
    assert [episode.error for episode in collected.failures] == []
    assert {episode.end for episode in collected.episodes} == {EpisodeEnd.TERMINATED}
    assert all(
        entry.reward == {"x": 1.0, "o": -1.0}[entry.seat] for e in collected.episodes for entry in e.trajectories
    )


async def test_a_worker_says_where_its_episodes_stand_and_ends_one_without_the_others():
    async with Mesh() as mesh:
        worker = await mesh.spawn(
            RolloutWorker,
            environment=EnvironmentSpec(source=str(Path(DEADLY).with_name("patient_environment.py"))),
            tokenizer="tiny-llama",
        )
        plan = plan_groups(
            environment="patient",
            run_seed=0,
            phase="train",
            step=0,
            groups=1,
            group_size=2,
            seats={"agent": ScriptedSeat(function="deadly_environment:move")},
        )
        collecting = asyncio.create_task(collect([worker], plan))
        async with asyncio.timeout(60):
            while len(await worker.episodes()) < 2:
                pass
        first, second = (rollout.id for rollout in plan.rollouts)
        assert {state.id for state in await worker.episodes()} == {first, second}
        assert not await worker.cancel("unknown", "nothing")
        for id in (first, second):
            assert await worker.cancel(id, f"end of {id}")
        collected = await asyncio.wait_for(collecting, 60)
    assert [episode.error for episode in collected.failures] == [
        f"patient: stopped: end of {id}" for id in (first, second)
    ]
