"""Gomoku: every line of every board size, what ends a game, and the scripted player."""

import random
from itertools import product

import pytest
from boards import fresh, game, module_of

from tinker_actors.coordinator import run_episode
from tinker_actors.data import EpisodeEnd, Message, Task
from tinker_actors.environments import ScriptedAgent, load_environment
from tinker_actors.errors import ConfigError

FIRST, SECOND = "player", "opponent"
NAMES = module_of("gomoku").NAMES
BOARDS = [(size, line) for size in range(2, 8) for line in range(2, size + 1)]


def stretches(size, line):
    """All straight stretches of squares on a board, found by walking from every square in all eight directions."""
    found = set()
    for row, column, down, right in product(range(size), range(size), (-1, 0, 1), (-1, 0, 1)):
        walk = [(row + down * n, column + right * n) for n in range(line)]
        if (down or right) and all(0 <= r < size and 0 <= c < size for r, c in walk):
            found.add(frozenset(r * size + c for r, c in walk))
    return found


def put(environment, stones):
    environment.board = {name: stones.get(name, "") for name in environment.board}


@pytest.mark.parametrize(("size", "line"), BOARDS)
def test_every_line_wins_whichever_stone_comes_last_and_nothing_shorter_does(size, line):
    environment, _ = fresh("gomoku", size=size, line=line)
    for stretch in stretches(size, line):
        squares = [NAMES[at] for at in sorted(stretch)]
        for last in squares:
            put(environment, {square: FIRST for square in squares if square != last})
            assert environment.step({FIRST: last}).reward == {FIRST: 1.0, SECOND: -1.0}
        # one stone of the other's breaks it
        put(environment, dict.fromkeys(squares[1:-1], FIRST) | {squares[0]: SECOND})
        step = environment.step({FIRST: squares[-1]})
        assert step.observation is not None or step.reward[FIRST] == 0.0


def test_random_games_end_as_soon_as_there_is_a_line_and_never_without_one():
    lengths = []
    for number in range(60):
        size, line = BOARDS[number % len(BOARDS)]
        environment, observation = fresh("gomoku", seed=number, size=size, line=line)
        won = stretches(size, line)
        stones = {FIRST: set(), SECOND: set()}
        order = random.Random(number).sample(range(size * size), size * size)
        for turn, at in enumerate(order, 1):
            (seat,) = observation
            stones[seat].add(at)
            step = environment.step({seat: NAMES[at]})
            if any(stretch <= stones[seat] for stretch in won):
                assert step.terminated
                assert step.reward[seat] == 1.0
                break
            assert step.terminated == (turn == size * size)
            observation = step.observation
        lengths.append(turn)
    assert len(set(lengths)) > 10


def test_a_full_board_without_a_line_is_a_draw():
    # on four by four, in pairs: rows XXOO OOXX XXOO OOXX have no three in a row
    first, second = "abghijop", "cdefklmn"
    moves = [move for pair in zip(first, second, strict=True) for move in pair]
    seats, steps = game("gomoku", *moves, size=4, line=3)
    assert [step.terminated for step in steps] == [False] * 15 + [True]
    assert steps[-1].reward == {FIRST: 0.0, SECOND: 0.0}
    assert steps[-1].metrics == {"illegal": 0.0, "draw": 1.0}
    assert seats[:3] == [seats[0], seats[1], seats[0]]


@pytest.mark.parametrize("move", ["", "a", "z", "X", "O", "bb", "1", "B"])
def test_what_is_no_free_square_loses(move):
    seats, steps = game("gomoku", "a", move)
    assert steps[-1].reward == {seats[1]: -1.0, seats[0]: 1.0}
    assert steps[-1].metrics == {"illegal": 1.0, "draw": 0.0}


def test_each_seat_sees_its_own_stones_as_x_and_all_free_squares_have_names_of_their_own():
    environment, observation = fresh("gomoku", size=7, line=5)
    ((seat, board),) = observation.items()
    assert len(set(board.replace("\n", ""))) == 49
    other = environment.seats[seat == FIRST]
    step = environment.step({seat: " M "})
    assert step.observation == {other: board[:-1] + "O"}
    assert environment.step({other: "a"}).observation == {seat: "O" + board[1:-1] + "X"}
    assert environment.max_turns == 49


@pytest.mark.parametrize(
    ("view", "size"), [*(("board", size) for size in range(2, 8)), *(("stones", size) for size in range(2, 6))]
)
def test_an_observation_tells_everything_about_the_position(view, size):
    module, rng = module_of("gomoku"), random.Random(size)
    rules = fresh("gomoku", size=size, line=2)[0]._rules()
    for _ in range(50):
        squares = "".join(rng.choice((name, name, "X", "O")) for name in NAMES[: size**2])
        shown = module.written(squares, view)
        assert module.read(shown, size) == module.read(rules + shown, size) == squares


def test_the_stones_alone_are_shown_if_asked_for():
    environment, observation = fresh("gomoku", view="stones")
    ((seat, shown),) = observation.items()
    other = environment.seats[seat == FIRST]
    assert shown == "-"
    assert environment.step({seat: "m"}).observation == {other: "M"}
    assert environment.step({other: "a"}).observation == {seat: "mA"}
    assert environment.step({seat: "c"}).observation == {other: "aCM"}


def test_the_task_says_who_begins():
    begins = [next(iter(fresh("gomoku", seed=seed, luck=luck)[1])) for seed in range(100) for luck in range(2)]
    assert begins[::2] == begins[1::2]
    assert 35 < begins[::2].count(FIRST) < 65


def said(text):
    return [Message(role="user", content=text)]


@pytest.mark.parametrize(
    ("board", "best"),
    [
        ("XXXde\nOOOij\nklmno\npqrst\nuvwxy", {"d"}),  # its own line goes before the other's
        ("abcde\nOOOij\nklmno\npqrst\nuvwxy", {"i"}),
        ("Obcde\nfOhij\nklmno\npqrOt\nuvwxy", {"m"}),
        ("Xbcde\nfghij\nklmno\npqrst\nuvwxy", set(NAMES[1:25])),
    ],
)
def test_the_scripted_player_wins_and_stops_where_it_can(board, best):
    scripted = module_of("gomoku").scripted
    assert {scripted(said(board), random.Random(luck)) for luck in range(300)} == best
    assert len({scripted(said(board), random.Random(luck), skill=0.0) for luck in range(300)}) > 15
    ruled = fresh("gomoku", explain=True)[0]._rules() + board
    assert {scripted(said(ruled), random.Random(luck)) for luck in range(300)} == best


def test_the_scripted_player_minds_the_length_of_a_line():
    scripted = module_of("gomoku").scripted
    assert {scripted(said("XXcd\nefgh\nijkl\nmnop"), random.Random(luck), size=4, line=3) for luck in range(50)} == {
        "c"
    }


async def test_a_skilled_script_beats_one_without():
    scripted = module_of("gomoku").scripted
    won = []
    for number in range(60):
        view = ("board", "stones")[number % 2]
        rng = random.Random(number)
        agents = {
            FIRST: ScriptedAgent(lambda messages, rng=rng: scripted(messages, rng)),
            SECOND: ScriptedAgent(lambda messages, rng=rng: scripted(messages, rng, skill=0.0)),
        }
        environment = load_environment("gomoku", view=view)()
        episode = await run_episode(environment, agents, task=Task(environment="gomoku", seed=number), id="e", seed=1)
        assert episode.end is EpisodeEnd.TERMINATED
        won.append(next(entry.reward for entry in episode.trajectories if entry.seat == FIRST))
    assert won.count(1.0) > 45


@pytest.mark.parametrize(("skill", "least", "most"), [(0.0, 0, 40), (0.5, 130, 200), (1.0, 300, 300)])
def test_demonstrations_are_as_good_as_they_say(skill, least, most):
    environment, _ = fresh("gomoku", skill=skill)
    put(environment, dict.fromkeys("bcd", FIRST) | {"a": SECOND})
    assert least <= sum(environment.demonstrate(FIRST) == "e" for _ in range(300)) <= most


@pytest.mark.parametrize(
    "options",
    [{"size": 8}, {"line": 6}, {"line": 1}, {"skill": 1.5}, {"view": "picture"}, {"view": "stones", "size": 6}],
)
def test_options_that_cannot_work_are_refused(options):
    with pytest.raises(ConfigError, match=" is "):
        load_environment("gomoku", **options)()
