"""Environments of PettingZoo, as they are."""

import pytest
from pettingzoo.utils import AECEnv

from tinker_actors.coordinator import run_episode
from tinker_actors.data import Task
from tinker_actors.environments import ScriptedAgent, load_environment
from tinker_actors.environments.libraries import PettingZooEnvironment
from tinker_actors.errors import ConfigError

GAME = "pettingzoo:tictactoe_v3"
ROCK = "pettingzoo_parallel:classic/rps_v2"


def script(*answers):
    said = iter(answers)
    return ScriptedAgent(lambda messages: next(said))


async def played(name, agents, **options):
    environment = load_environment(name, **options)()
    episode = await run_episode(environment, agents, task=Task(environment=name, seed=3), id="a")
    assert episode.error is None
    return episode, {each.seat: each for each in episode.trajectories}


async def test_a_game_in_turns_rewards_both_seats():
    agents = {"player_1": script("0", "1", "2"), "player_2": script("3", "4")}
    episode, seats = await played(GAME, agents)
    assert episode.end.value == "terminated"
    assert {name: seat.reward for name, seat in seats.items()} == {"player_1": 1.0, "player_2": -1.0}
    assert [len(seat.turns) for seat in seats.values()] == [3, 2]


def test_seats_are_known_before_an_episode_and_act_one_at_a_time():
    factory = load_environment(GAME)
    assert factory.environment.seats == ("player_1", "player_2")
    game = factory()
    first = game.reset(1)
    assert list(first) == ["player_1"]
    assert first["player_1"].endswith("Answer with one of: 0, 1, 2, 3, 4, 5, 6, 7, 8.")
    second = game.step({"player_1": "square 4"}).observation
    assert list(second) == ["player_2"]
    assert second["player_2"].endswith("Answer with one of: 0, 1, 2, 3, 5, 6, 7, 8.")
    game.close()


async def test_a_move_that_is_taken_never_reaches_the_library_and_loses_in_the_end():
    agents = {"player_1": script("0", "1"), "player_2": script("0", "0", "0")}
    _, seats = await played(GAME, agents)
    assert {name: seat.reward for name, seat in seats.items()} == {"player_1": 1.0, "player_2": -1.0}
    assert len(seats["player_2"].turns) == 3


async def test_seats_that_act_at_the_same_time_are_each_rewarded():
    agents = {"player_0": script("1", "0"), "player_1": script("2", "2")}
    episode, seats = await played(ROCK, agents, max_cycles=2)
    assert episode.end.value == "truncated"  # the library's limit
    rewards = {name: [turn.reward for turn in seat.turns] for name, seat in seats.items()}
    assert rewards == {"player_0": [-1.0, 1.0], "player_1": [1.0, -1.0]}


def test_only_those_act_again_whose_action_could_not_be_taken():
    rock = load_environment(ROCK, actions=["rock", "paper", "scissors"])()
    rock.reset(1)
    step = rock.step({"player_0": "paper!", "player_1": "well"})
    assert list(step.observation) == ["player_1"]
    assert step.metrics == {"illegal_actions": 1.0}
    step = rock.step({"player_1": "scissors"})
    assert step.reward == {"player_0": -1.0, "player_1": 1.0}
    assert list(step.observation) == ["player_0", "player_1"]
    rock.close()


class Leaving(AECEnv):
    """Three agents; each move of one earns it its number, the first leaves after its move."""

    metadata = {"name": "leaving"}  # noqa: RUF012

    def __init__(self):
        self.possible_agents = ["a", "b", "c"]
        self.closed = 0

    def observation_space(self, agent):
        from gymnasium.spaces import Discrete

        return Discrete(10)

    action_space = observation_space

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}
        self.agent_selection = "a"
        self.moves = 0

    def observe(self, agent):
        return self.moves

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self.moves += 1
        self._cumulative_rewards[agent] = 0
        self.rewards = dict.fromkeys(self.agents, 0) | {agent: action}
        self._accumulate_rewards()
        if agent == "a":
            self.terminations["a"] = True
        if self.moves == 5:
            self.truncations |= dict.fromkeys(self.agents, True)
        self.agent_selection = {"a": "b", "b": "c", "c": "a" if "a" in self.agents else "b"}[agent]
        self._deads_step_first()

    def close(self):
        self.closed += 1


async def test_an_agent_that_left_acts_no_more_and_keeps_what_it_earned():
    wrapped = Leaving()
    agents = {"a": script("1"), "b": script("2", "2"), "c": script("3", "3")}
    episode = await run_episode(PettingZooEnvironment(wrapped), agents, task=Task(environment="x", seed=1), id="a")
    rewards = {each.seat: each.reward for each in episode.trajectories}
    assert episode.error is None
    assert (episode.end.value, rewards) == ("terminated", {"a": 1.0, "b": 4.0, "c": 6.0})
    assert wrapped.closed == 1


def test_unknown_names_are_refused_with_what_comes_close():
    with pytest.raises(ConfigError, match="did you mean 'classic/tictactoe_v3'"):
        load_environment("pettingzoo:tictactoe_v1")
    with pytest.raises(ConfigError, match="pettingzoo_parallel has no environment 'tictactoe_v3'"):
        load_environment("pettingzoo_parallel:tictactoe_v3")
