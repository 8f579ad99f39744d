"""Games of TextArena, as they are."""

import random

import numpy as np
import pytest

from tinker_actors.coordinator import run_episode
from tinker_actors.data import Task
from tinker_actors.environments import ScriptedAgent, load_environment
from tinker_actors.errors import ConfigError

GAME = "textarena:TicTacToe-v0"


def script(*answers):
    said = iter(answers)
    return ScriptedAgent(lambda messages: next(said))


async def test_two_scripts_play_tic_tac_toe():
    agents = {"player_0": script("[0]", "[1]", "[2]"), "player_1": script("[3]", "[4]")}
    episode = await run_episode(load_environment(GAME)(), agents, task=Task(environment=GAME, seed=1), id="a")
    assert (episode.error, episode.end.value) == (None, "terminated")
    assert {each.seat: each.reward for each in episode.trajectories} == {"player_0": 1.0, "player_1": -1.0}


def test_a_seat_reads_only_what_is_new_to_it():
    game = load_environment(GAME)()
    assert "You are Player 0" in game.reset(1)["player_0"]
    assert "You are Player 1" in game.step({"player_0": "[0]"}).observation["player_1"]
    third = game.step({"player_1": "[4]"}).observation["player_0"]
    assert "You are Player 0" not in third
    assert "[Player 1] [4]" in third


def test_the_game_s_own_rules_for_illegal_moves_apply():
    game = load_environment(GAME)()
    game.reset(1)
    again = game.step({"player_0": "hm"})
    assert "invalid move" in again.observation["player_0"]
    last = game.step({"player_0": "hm"})
    assert last.terminated
    assert last.reward == {"player_0": -1.0, "player_1": 1.0}
    assert last.metrics == {"illegal_moves": 1.0}


def test_one_player_games_have_one_seat():
    factory = load_environment("textarena:Blackjack-v0")
    assert factory.environment.seats == ("player_0",)
    game = factory()
    assert "Hand 1/5" in game.reset(1)
    assert isinstance(game.step("[Stand]").observation, str)


def test_games_take_as_many_players_as_they_are_told():
    assert len(load_environment("textarena:SecretMafia-v0").environment.seats) == 6
    assert len(load_environment("textarena:SecretMafia-v0", players=8).environment.seats) == 8


def test_games_played_by_turns_draw_as_if_alone_and_leave_the_world_s_luck_alone():
    def hands(game):
        return [game.step("[Stand]").observation for _ in range(3)]

    factory = load_environment("textarena:Blackjack-v0")
    alone = factory()
    first = [alone.reset(7), *hands(alone)]
    one, other = factory(), factory()
    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()
    seen = [one.reset(7)]
    other.reset(8)
    for _ in range(3):
        seen += [one.step("[Stand]").observation]
        other.step("[Hit]")
    assert seen == first
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    assert factory().reset(8) != first[0]


def test_unknown_games_and_numbers_of_players_are_refused():
    with pytest.raises(ConfigError, match="did you mean 'TicTacToe-v0'"):
        load_environment("textarena:TicTacTo-v0")
