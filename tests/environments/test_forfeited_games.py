"""Games whose seat fails: the other seat has won."""

import asyncio

import pytest
from tests.coordinator.skipped_time import in_skipped_time

from tinker_actors.coordinator import EpisodeLimits, run_episode
from tinker_actors.data import EpisodeEnd, Task
from tinker_actors.environments import ScriptedAgent, load_environment

GAMES = {"tic_tac_toe": ["5", "1", "2"], "gomoku": ["a", "b", "c"], "kuhn_poker": ["pass", "bet"]}


def broken():
    raise RuntimeError("out of order")


@pytest.mark.parametrize("name", GAMES)
@pytest.mark.parametrize("failure", ["error", "silence"])
@pytest.mark.parametrize("turn", [1, 2])
@in_skipped_time
async def test_a_seat_that_fails_loses(name, failure, turn):
    moves = iter(GAMES[name][:turn])
    acted = []

    async def answer(messages, seat):
        acted.append(seat)
        if (move := next(moves, None)) is not None:
            return move
        if failure == "error":
            broken()
        return await asyncio.Event().wait()

    environment = load_environment(name)()
    agents = {seat: ScriptedAgent(lambda messages, seat=seat: answer(messages, seat)) for seat in environment.seats}
    limits = EpisodeLimits(turn_seconds=0.2 if failure == "silence" else 20.0)
    episode = await run_episode(environment, agents, task=Task(environment=name, seed=0), id="e", limits=limits)
    assert episode.end is EpisodeEnd.FORFEITED
    loser = acted[-1]
    assert len(acted) == turn + 1
    assert {entry.seat: entry.reward for entry in episode.trajectories} == {
        seat: -1.0 if seat == loser else 1.0 for seat in environment.seats
    }
