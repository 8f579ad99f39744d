"""Tic-tac-toe: its rules against a plain referee in every position there is, and the optimal player."""

import random

import pytest
from boards import fresh, game, module_of

from tinker_actors.coordinator import run_episode
from tinker_actors.data import EpisodeEnd, Message, Task
from tinker_actors.environments import ScriptedAgent, load_environment
from tinker_actors.errors import ConfigError

ROWS = ["123", "456", "789", "147", "258", "369", "159", "357"]
FIRST, SECOND = "player", "opponent"
BEGINS = {FIRST: 1, SECOND: 0}  # task seeds


def has_won(stones):
    return any(set(row) <= stones for row in ROWS)


def positions():
    """Every position that is not over: the stones of who is to move, and the other's."""
    known, waiting = set(), [(frozenset(), frozenset())]
    while waiting:
        own, theirs = position = waiting.pop()
        if position in known or has_won(theirs) or len(own | theirs) == 9:
            continue
        known.add(position)
        waiting.extend((theirs, own | {square}) for square in "123456789" if square not in own | theirs)
    return known


def test_every_move_in_every_position_ends_as_the_rules_say():
    environment, _ = fresh("tic_tac_toe")
    reachable = positions()
    assert len(reachable) == 4520  # of the 5478 that can arise, 958 are over
    for own, theirs in reachable:
        for square in "0123456789":
            environment.board = {
                name: FIRST if name in own else SECOND if name in theirs else "" for name in "123456789"
            }
            step = environment.step({FIRST: square})
            if square in own | theirs or square == "0":
                expected = -1.0
            elif has_won(own | {square}):
                expected = 1.0
            else:
                expected = 0.0 if len(own | theirs) == 8 else None
            assert step.terminated == (expected is not None), (own, theirs, square)
            if expected is None:
                assert set(step.observation) == {SECOND}
            else:
                assert step.reward == {FIRST: expected, SECOND: -expected}, (own, theirs, square)


def test_a_line_on_the_last_free_square_wins():
    # the ninth stone fills the board and completes 1-4-7
    seats, steps = game("tic_tac_toe", *"123546897", seed=BEGINS[FIRST])
    assert [step.terminated for step in steps] == [False] * 8 + [True]
    assert steps[-1].reward == {FIRST: 1.0, SECOND: -1.0}
    assert steps[-1].metrics == {"illegal": 0.0, "draw": 0.0}
    assert seats == [FIRST, SECOND] * 4 + [FIRST]


@pytest.mark.parametrize("moves", ["152378649", "123546879"])
def test_a_full_board_without_a_line_is_a_draw(moves):
    _, steps = game("tic_tac_toe", *moves)
    assert steps[-1].reward == {FIRST: 0.0, SECOND: 0.0}
    assert steps[-1].metrics == {"illegal": 0.0, "draw": 1.0}


@pytest.mark.parametrize("move", ["", "0", "10", "5 ", "x", "X", "five", "55"])
def test_what_is_no_free_square_loses(move):
    seats, steps = game("tic_tac_toe", "5", move)
    assert steps[-1].terminated
    assert steps[-1].reward == {seats[1]: -1.0, seats[0]: 1.0}
    assert steps[-1].metrics == {"illegal": 1.0, "draw": 0.0}


def test_each_seat_sees_its_own_stones_as_x():
    environment, observation = fresh("tic_tac_toe", seed=BEGINS[SECOND])
    assert observation == {SECOND: "123\n456\n789"}
    step = environment.step({SECOND: " 5\n"})
    assert step.observation == {FIRST: "123\n4O6\n789"}
    assert environment.step({FIRST: "1"}).observation == {SECOND: "O23\n4X6\n789"}


def test_the_task_says_who_begins_and_luck_does_not():
    begins = [next(iter(fresh("tic_tac_toe", seed=seed, luck=luck)[1])) for seed in range(100) for luck in range(3)]
    assert all(len(set(begins[at : at + 3])) == 1 for at in range(0, 300, 3))
    assert 35 < begins[::3].count(FIRST) < 65


def opened(seed, *, evaluating=False):
    environment = load_environment("tic_tac_toe", opening=3)()
    environment.evaluating = evaluating
    ((seat, shown),) = environment.reset(seed).items()
    other = SECOND if seat == FIRST else FIRST
    stones = list(environment.board.values())
    return seat, shown, stones.count(seat), stones.count(other)


def test_games_of_a_task_begin_with_the_same_stones_and_whoever_has_fewer_or_as_many_is_to_move():
    begun = [opened(seed) for seed in range(200)]
    assert begun == [opened(seed) for seed in range(200)]
    assert {(own, theirs) for _, _, own, theirs in begun} == {(0, 0), (0, 1), (1, 1), (1, 2)}
    assert len({shown for _, shown, _, _ in begun}) > 60


def test_evaluations_begin_with_an_empty_board_and_the_same_seat_as_without_an_opening():
    for seed in range(50):
        seat, shown, *_ = opened(seed, evaluating=True)
        assert {seat: shown} == fresh("tic_tac_toe", seed=seed)[1]


def test_the_rules_come_once_per_seat_if_asked_for():
    environment, observation = fresh("tic_tac_toe", explain=True)
    rules = module_of("tic_tac_toe").RULES
    first, second = BEGINS_OF[next(iter(observation))]
    assert observation[first].startswith(rules)
    assert environment.step({first: "5"}).observation[second] == rules + "123\n4O6\n789"
    assert environment.step({second: "1"}).observation[first] == "O23\n4X6\n789"


BEGINS_OF = {FIRST: (FIRST, SECOND), SECOND: (SECOND, FIRST)}


@pytest.mark.parametrize("view", ["board", "stones"])
def test_an_observation_tells_everything_about_the_position(view):
    module = module_of("tic_tac_toe")
    for own, theirs in positions():
        squares = "".join("X" if name in own else "O" if name in theirs else name for name in "123456789")
        shown = module.written(squares, view)
        assert module.read(shown) == module.read(module.RULES + shown) == squares


def test_the_stones_alone_are_shown_if_asked_for():
    environment, observation = fresh("tic_tac_toe", seed=BEGINS[SECOND], view="stones")
    assert observation == {SECOND: "-"}
    assert environment.step({SECOND: "5"}).observation == {FIRST: "e"}
    assert environment.step({FIRST: "1"}).observation == {SECOND: "5a"}
    assert environment.step({SECOND: "3"}).observation == {FIRST: "1ce"}


def test_best_play_from_the_empty_board_is_a_draw_and_every_opening_keeps_it():
    module = module_of("tic_tac_toe")
    assert module.value("123456789") == 0
    assert module.best_moves("123456789") == list("123456789")
    # a corner opening is answered in the middle alone; two in a row are completed, or stopped
    assert module.best_moves("O23456789") == ["5"]
    assert module.best_moves("XX3OO6789") == ["3"]
    assert module.best_moves("O2O4X6789") == ["2"]


async def test_the_optimal_player_never_loses_and_beats_one_that_plays_anything():
    module = module_of("tic_tac_toe")
    won = 0
    for number in range(120):
        rng = random.Random(number)
        agents = {
            FIRST: ScriptedAgent(lambda messages, rng=rng: module.optimal(messages, rng)),
            SECOND: ScriptedAgent(lambda messages, rng=rng: module.anything(messages, rng)),
        }
        view = ("board", "stones")[number // 2 % 2]
        environment = load_environment("tic_tac_toe", view=view, explain=bool(number % 2))()
        task = Task(environment="tic_tac_toe", seed=number)
        episode = await run_episode(environment, agents, task=task, id="e", seed=number)
        assert episode.end is EpisodeEnd.TERMINATED
        by_seat = {entry.seat: entry.reward for entry in episode.trajectories}
        assert by_seat[FIRST] >= 0
        won += by_seat[FIRST] > 0
    assert won > 90


def test_the_optimal_player_chooses_among_equals():
    module = module_of("tic_tac_toe")
    board = [Message(role="user", content="123\n456\n789")]
    assert {module.optimal(board, random.Random(luck)) for luck in range(100)} == set("123456789")


@pytest.mark.parametrize(("skill", "least", "most"), [(0.0, 20, 90), (0.5, 150, 260), (1.0, 300, 300)])
def test_demonstrations_are_as_good_as_they_say(skill, least, most):
    environment, _ = fresh("tic_tac_toe", skill=skill)
    environment.board = dict.fromkeys("123456789", "") | {"1": SECOND}
    assert least <= sum(environment.demonstrate(FIRST) == "5" for _ in range(300)) <= most


@pytest.mark.parametrize("options", [{"skill": -0.1}, {"skill": 1.1}, {"view": "picture"}, {"opening": 5}])
def test_options_that_cannot_work_are_refused(options):
    with pytest.raises(ConfigError, match=" is "):
        load_environment("tic_tac_toe", **options)()
