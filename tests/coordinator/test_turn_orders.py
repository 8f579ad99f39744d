"""Who acts when: what the environment leaves open, declares, and says of teams."""

import pytest

from tinker_actors.coordinator import run_episode
from tinker_actors.data import EpisodeEnd, Task
from tinker_actors.environments import Agent, Environment, Step, TurnOrder

TASK = Task(environment="game", seed=4)


class Remembers(Agent):
    def __init__(self, name, log):
        self.name, self.log = name, log

    async def act(self, messages):
        self.log.append((self.name, messages[-1].content))
        return self.name


class Shows(Environment):
    """Shows what it is given, one observation a turn; three seats in two teams."""

    seats = ("a", "b", "c")
    teams = {"home": ("a", "c"), "away": ("b",)}  # noqa: RUF012

    def __init__(self, *observations, reward=None, order=TurnOrder.FREE):
        self.observations, self.reward, self.turn_order = list(observations), reward or {}, order
        self.heard = []

    def reset(self, seed):
        return self.observations.pop(0)

    def step(self, actions):
        self.heard.append(list(actions))
        if self.observations:
            return Step(observation=self.observations.pop(0))
        return Step(reward=self.reward, terminated=True)


async def play(environment):
    log = []
    agents = {seat: Remembers(seat, log) for seat in environment.seats}
    return await run_episode(environment, agents, task=TASK, id="e"), log


async def test_seats_in_turn_need_no_names():
    environment = Shows("1", "2", {"c": "3"}, "4", order=TurnOrder.ROUND_ROBIN)
    episode, log = await play(environment)
    assert log == [("a", "1"), ("b", "2"), ("c", "3"), ("a", "4")]
    assert episode.end is EpisodeEnd.TERMINATED


async def test_what_all_see_at_once_needs_no_names():
    environment = Shows("1", {"c": "y", "b": "x", "a": "w"}, order=TurnOrder.SIMULTANEOUS)
    _, log = await play(environment)
    assert sorted(log[:3]) == [("a", "1"), ("b", "1"), ("c", "1")]
    assert environment.heard == [["a", "b", "c"]] * 2


async def test_the_environment_may_let_anyone_act_at_any_time():
    _, log = await play(Shows({"b": "1"}, {"b": "2"}, {"c": "3", "a": "3"}, {"a": "4"}))
    assert log == [("b", "1"), ("b", "2"), ("a", "3"), ("c", "3"), ("a", "4")]


async def test_a_team_acts_together_and_each_of_it_earns_the_teams_reward():
    environment = Shows({"home": "attack"}, {"away": "defend"}, reward={"home": 1.0, "c": 0.5, "away": -1.0})
    episode, log = await play(environment)
    assert environment.heard == [["a", "c"], ["b"]]
    assert log == [("a", "attack"), ("c", "attack"), ("b", "defend")]
    assert {entry.seat: entry.reward for entry in episode.trajectories} == {"a": 1.0, "b": -1.0, "c": 1.5}


@pytest.mark.parametrize(
    ("order", "observation", "named"),
    [
        (TurnOrder.TURN_BASED, {"a": "1", "b": "1"}, "'turn_based' one seat acts at a time"),
        (TurnOrder.ROUND_ROBIN, {"b": "1"}, "'round_robin' it is the turn of 'a' alone"),
        (TurnOrder.SIMULTANEOUS, {"b": "1"}, "'simultaneous' all of ['a', 'b', 'c'] act in every turn"),
        (TurnOrder.TURN_BASED, "1", "a mapping of observations by acting seat"),
        (TurnOrder.FREE, {"z": "1"}, "its seats are ['a', 'b', 'c'] and its teams ['home', 'away']"),
    ],
)
async def test_an_observation_out_of_order_fails_the_episode_by_name(order, observation, named):
    episode, log = await play(Shows(observation, order=order))
    assert (episode.end, log) == (EpisodeEnd.FAILED, [])
    assert named in episode.error
