"""Each participant of an episode is ended at each point of the protocol: by exception, by being stopped, by SIGKILL.

Nobody waits, the rewards follow the forfeit rule, and the other episodes finish.
"""

import asyncio
import os
import signal

import pytest
from held_players import TASK, Asks, HeldAgent, HeldSampler, Mortal, Points

from tinker_actors.actors import Mesh, Terminated
from tinker_actors.coordinator import EpisodeCoordinator, EpisodeLimits, EpisodeState, Stage
from tinker_actors.data import EpisodeEnd, TurnEnd
from tinker_actors.environments import EnvironmentSpec
from tinker_actors.environments.actors import EnvironmentActor
from tinker_actors.errors import ActorError, EpisodeError

GAME = f"{__file__.rpartition('/')[0]}/held_players.py:HeldGame"
VICTIMS = ("agent", "sampler", "environment", "coordinator")
POINTS = {"reset": "reset", "act": "x1", "step": "step1", "between": "o1", "close": "close"}
CASES = [(victim, point) for victim in VICTIMS for point in POINTS]
LIMITS = EpisodeLimits(turn_seconds=30)


class MortalCoordinator(EpisodeCoordinator, Mortal):
    """One that can be made to fail."""


class Table:
    """One episode with a victim, whose participants are actors; the victim lives on a node of its own."""

    def __init__(self, victim, point, node):
        self.victim, self.point, self.id = victim, f"{victim}-{point}/{POINTS[point]}", f"{victim}-{point}"
        self.node = node

    async def seat(self, mesh, points):
        async def spawn(role, cls, *args, **options):
            ref = await mesh.spawn(cls, *args, node=self.node if role == self.victim else 0, **options)
            if role == self.victim:
                self.condemned = ref
            return ref

        spec = EnvironmentSpec(source=GAME, options={"points": points, "id": self.id})
        self.environment = await spawn("environment", EnvironmentActor, spec, luck=1)
        self.agents = {"o": await spawn("other", HeldAgent, points, self.id, "o")}
        if self.victim == "sampler":
            self.agents["x"] = Asks(await spawn("sampler", HeldSampler, points, self.id))
        else:
            self.agents["x"] = await spawn("agent", HeldAgent, points, self.id, "x")
        self.coordinator = await spawn("coordinator", MortalCoordinator)
        return self

    def play(self):
        return asyncio.create_task(
            self.coordinator.play(self.environment, self.agents, task=TASK, id=self.id, limits=LIMITS)
        )


async def outcome(playing):
    """The episode, or the error that whoever waited for it got; in bounded time."""
    try:
        return await asyncio.wait_for(playing, 60)
    except ActorError as error:
        return error


def check(victim, point, found):
    if victim == "coordinator":
        assert isinstance(found, ActorError)
        return
    rewards = {entry.seat: entry.reward for entry in found.trajectories}
    if point == "close":
        assert (found.end, rewards) == (EpisodeEnd.TERMINATED, {"x": 0.5, "o": -0.5})
    elif victim == "environment":
        assert (found.end, rewards) == (EpisodeEnd.FAILED, {"x": 0.0, "o": 0.0})
        assert ("reset: " in found.error) == (point == "reset")
    else:
        turn = 2 if point in ("step", "between") else 0
        assert (found.end, rewards) == (EpisodeEnd.FORFEITED, {"x": -1.0, "o": 1.0})
        assert f"seat 'x', turn {turn}: " in found.error
        assert found.trajectory("x").end is EpisodeEnd.FAILED
        assert found.trajectory("x").turns[-1].end is TurnEnd.AGENT_ERROR


@pytest.mark.parametrize("means", ["exception", "stop"])
@pytest.mark.parametrize(("victim", "point"), CASES)
async def test_a_participant_that_ends(victim, point, means):
    async with Mesh() as mesh:
        table = Table(victim, point, 0)
        points = await mesh.spawn(Points, [table.point])
        await table.seat(mesh, points)
        playing = table.play()
        await asyncio.wait_for(points.until(table.point), 60)
        ended = mesh.watch(table.condemned)
        if means == "stop" or victim == "environment":
            await mesh.stop(table.condemned, drain=False)
        else:
            table.condemned.tell.die()
        async for event in ended:
            assert isinstance(event, Terminated)
        if point != "act" or victim == "environment":
            await points.release()
        check(victim, point, await outcome(playing))


@pytest.mark.parametrize("order", ["raise", "cancel"])
@pytest.mark.parametrize("point", ["reset", "act", "step", "between", "close"])
async def test_what_a_participant_raises_where_it_is(point, order):
    async with Mesh() as mesh:
        table = Table("nobody", point, 0)
        points = await mesh.spawn(Points, [table.point])
        await table.seat(mesh, points)
        playing = table.play()
        await asyncio.wait_for(points.until(table.point), 60)
        await points.release(order)
        found = await outcome(playing)
    loser = {"act": "x", "between": "o"}.get(point)
    if loser:
        assert found.end is EpisodeEnd.FORFEITED
        assert found.trajectory(loser).end is EpisodeEnd.FAILED
        assert found.trajectory(loser).reward == -1.0
    else:
        assert found.end is (EpisodeEnd.TERMINATED if point == "close" else EpisodeEnd.FAILED)


async def killed_at_all_points():
    """All cases at once, beside episodes that have no part in the process that is killed; what became of each."""
    async with Mesh(nodes=2) as mesh:
        tables = [Table(victim, point, 1) for victim, point in CASES]
        bystanders = [Table("nobody", point, 1) for point in POINTS]
        points = await mesh.spawn(Points, [table.point for table in (*tables, *bystanders)], node=0)
        for table in (*tables, *bystanders):
            await table.seat(mesh, points)
        playing = [table.play() for table in (*tables, *bystanders)]
        async with asyncio.timeout(60):
            for table in (*tables, *bystanders):
                await points.until(table.point)
        assert await tables[0].condemned.pid() == mesh.pids[1] != os.getpid()
        os.kill(mesh.pids[1], signal.SIGKILL)
        async for _ in mesh.watch(tables[0].condemned):
            pass
        waited = asyncio.gather(*(outcome(each) for each in playing))
        await points.release()
        found = await waited
        return dict(zip((*CASES, *(("nobody", point) for point in POINTS)), found, strict=True))


@pytest.fixture(scope="module")
def after_the_kill():
    return asyncio.run(killed_at_all_points())


@pytest.mark.parametrize(("victim", "point"), CASES)
def test_a_participant_whose_process_is_killed(after_the_kill, victim, point):
    check(victim, point, after_the_kill[victim, point])


def test_episodes_without_a_part_in_a_killed_process_finish(after_the_kill):
    for point in POINTS:
        assert after_the_kill["nobody", point].end is EpisodeEnd.TERMINATED


async def test_a_coordinator_says_where_its_episode_stands_and_ends_it_when_asked():
    async with Mesh() as mesh:
        table = Table("nobody", "between", 0)
        points = await mesh.spawn(Points, [table.point])
        await table.seat(mesh, points)
        assert await table.coordinator.state() is None
        assert not await table.coordinator.cancel("too early")
        playing = table.play()
        await asyncio.wait_for(points.until(table.point), 60)
        state = await table.coordinator.state()
        assert state == EpisodeState(id=table.id, stage=Stage.ACT, turn=1, waiting_for=("o",))
        with pytest.raises(EpisodeError, match="each has a coordinator of its own"):
            await table.play()
        assert await table.coordinator.cancel("the run ends")
        found = await outcome(playing)
        assert (found.end, found.error) == (EpisodeEnd.FAILED, "game: stopped: the run ends")
        assert (await table.coordinator.state()).stage is Stage.ENDED
        assert not await table.coordinator.cancel("too late")
        assert await points.was_reached(f"{table.id}/close")


@pytest.mark.parametrize("point", ["reset", "act", "step", "between"])
async def test_cancelling_whoever_waits_for_an_episode_closes_its_environment(point):
    async with Mesh() as mesh:
        table = Table("nobody", point, 0)
        points = await mesh.spawn(Points, [table.point])
        await table.seat(mesh, points)
        playing = table.play()
        await asyncio.wait_for(points.until(table.point), 60)
        playing.cancel()
        await asyncio.wait_for(points.until(f"{table.id}/close"), 60)
