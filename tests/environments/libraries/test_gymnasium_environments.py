"""Environments of gymnasium, as they are."""

import time

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tinker_actors.coordinator import run_episode
from tinker_actors.data import Message, Task
from tinker_actors.environments import ScriptedAgent, load_environment
from tinker_actors.environments.libraries import GymnasiumEnvironment
from tinker_actors.errors import ConfigError

LAKE = "gymnasium:FrozenLake-v1"
MOVES = ["left", "down", "right", "up"]
DRY = {"is_slippery": False, "actions": MOVES}
WAY = ["down", "down", "right", "right", "down", "right"]


def script(*answers):
    said = iter(answers)
    return ScriptedAgent(lambda messages: next(said))


class Recorder(gymnasium.Env):
    """Keeps what it is given; ends as it is told."""

    def __init__(self, action_space, ends=(False, False)):
        self.observation_space = spaces.Text(20)
        self.action_space = action_space
        self.ends, self.taken, self.seeds, self.closed = ends, [], [], 0

    def reset(self, *, seed=None, options=None):
        self.seeds.append(seed)
        return "begin", {}

    def step(self, action):
        self.taken.append(action)
        return "on", 0.5, *self.ends, {}

    def close(self):
        self.closed += 1


async def test_an_episode_is_played_from_a_name_and_options():
    factory = load_environment(LAKE, **DRY)
    assert factory.environment.max_turns == 100  # as gymnasium has registered it
    episode = await run_episode(factory(), {"agent": script(*WAY)}, task=Task(environment=LAKE, seed=3), id="a")
    (trajectory,) = episode.trajectories
    assert episode.end.value == "terminated"
    assert trajectory.reward == 1.0
    assert len(trajectory.turns) == len(WAY)


def test_the_first_observation_says_what_may_be_answered_and_the_others_dont():
    lake = load_environment(LAKE, instructions="You are {seat}.", **DRY)()
    assert lake.reset(1) == "You are agent.\n0\nAnswer with one of: left, down, right, up."
    assert lake.step("down").observation == "4"
    lake.close()


def test_a_rendered_text_shows_what_its_colours_highlight():
    lake = load_environment(LAKE, observe="both", render_mode="ansi", **DRY)()
    assert lake.reset(1) == "[S]FFF\nFHFH\nFFFH\nHFFG\n0\nAnswer with one of: left, down, right, up."
    lake.close()


def test_a_rendered_picture_is_an_image():
    cart = gymnasium.make("FrozenLake-v1")
    cart.render = lambda: np.zeros((16, 16, 3), np.uint8)
    lake = GymnasiumEnvironment(cart, observe="render")
    observation = lake.reset(1)
    assert isinstance(observation, Message)
    assert observation.shown.startswith("[image 16x16]Answer with")
    lake.close()


def test_equal_seeds_give_equal_episodes_and_other_seeds_others():
    def played(seed, **options):
        lake = load_environment(LAKE, **options)()
        lake.luck = seed + 1
        seen = [lake.reset(seed)]
        for _ in range(8):
            step = lake.step("2")
            seen.append((step.observation, step.terminated))
            if step.terminated:
                break
        lake.close()
        return seen

    assert played(5) == played(5)
    assert len({str(played(seed)) for seed in range(8)}) > 1
    assert played(4, seeded_by="episode") == played(5)


def test_the_library_s_ends_are_told_apart():
    for ends, expected in [
        ((True, False), (True, False)),
        ((False, True), (False, True)),
        ((True, True), (True, False)),
    ]:
        environment = GymnasiumEnvironment(Recorder(spaces.Discrete(2), ends))
        environment.reset(1)
        step = environment.step("1")
        assert (step.terminated, step.truncated) == expected
        assert step.reward == 0.5


def test_a_time_limit_of_the_library_truncates():
    lake = load_environment(LAKE, max_episode_steps=2, **DRY)()
    lake.reset(1)
    assert not lake.step("left").truncated
    assert lake.step("left").truncated
    lake.close()


async def test_the_library_s_environment_is_closed_once():
    wrapped = Recorder(spaces.Discrete(2), (True, False))
    await run_episode(GymnasiumEnvironment(wrapped), {"agent": script("1")}, task=Task(environment="x", seed=1), id="a")
    assert (wrapped.closed, wrapped.taken) == (1, [1])


def test_an_illegal_action_is_told_and_may_be_retried_until_it_loses():
    lake = load_environment(LAKE, retries=1, **DRY)()
    lake.reset(1)
    first = lake.step("north")
    assert first.observation == ("That can't be done: no action was named. Answer with one of: left, down, right, up.")
    assert (first.reward, first.terminated) == (0.0, False)
    assert lake.step("down").observation == "4"
    assert not lake.step("9").terminated  # what was legal between them begins the count anew
    last = lake.step("nowhere")
    assert (last.reward, last.terminated, last.metrics) == (-1.0, True, {"illegal_actions": 3.0})
    lake.close()


def test_an_illegal_action_may_cost_a_penalty_or_the_episode():
    lake = load_environment(LAKE, illegal="penalty", penalty=0.25, **DRY)()
    lake.reset(1)
    for _ in range(4):
        step = lake.step("north")
        assert (step.reward, step.terminated) == (-0.25, False)
    lake.close()
    lake = load_environment(LAKE, illegal="forfeit", penalty=2, **DRY)()
    lake.reset(1)
    step = lake.step("north")
    assert (step.reward, step.terminated) == (-2, True)
    lake.close()


def test_what_a_mask_forbids_is_illegal_and_the_rest_is_named():
    taxi = load_environment("gymnasium:Taxi-v4")()
    assert taxi.reset(1).endswith("Answer with one of: 0, 1, 2, 3.")
    assert "4 can't be chosen now" in taxi.step("4").observation
    taxi.close()


def test_actions_of_every_space_are_understood():
    table = spaces.Dict({"go": spaces.Discrete(3), "by": spaces.Box(-1, 1, (2,))})
    for space, text, expected in [
        (spaces.Box(-1, 1, (2,)), "I'd say [0.5, -1].", [0.5, -1]),
        (spaces.MultiBinary(3), "1 0 1", [1, 0, 1]),
        (spaces.Text(10), " hello ", "hello"),
        (spaces.Tuple([spaces.Discrete(3), spaces.Discrete(2)]), "so: [2, 1]", (2, 1)),
    ]:
        wrapped = Recorder(space)
        environment = GymnasiumEnvironment(wrapped)
        environment.reset(1)
        environment.step(text)
        assert np.array_equal(wrapped.taken[0], expected)
    wrapped = Recorder(table)
    environment = GymnasiumEnvironment(wrapped)
    environment.reset(1)
    environment.step('{"go": 1, "by": [0, 0.5]}')
    assert wrapped.taken[0]["go"] == 1
    for text in ["[0.5]", "[2, 0]", '{"go": 5, "by": [0, 0]}']:
        assert environment.step(text).metrics["illegal_actions"] > 0
    assert len(wrapped.taken) == 1


@pytest.mark.parametrize(
    ("space", "text"),
    [
        (spaces.MultiBinary(2), "[256, 1]"),
        (spaces.Box(0, 255, (1,), dtype=np.uint8), "[-1]"),
        (spaces.Box(0, 255, (1,), dtype=np.uint8), "[300]"),
        (spaces.Box(-(2**63), 2**63 - 1, (1,), dtype=np.int64), "[9223372036854775808]"),
        (spaces.MultiDiscrete([3]), "[1e400]"),
        (spaces.Discrete(4), "3" * 5000),
        (spaces.Tuple([spaces.Discrete(2)]), "[" * 5000),
        (spaces.Tuple([spaces.MultiBinary(1)]), "[[1" + "0" * 400 + "]]"),
        (spaces.Box(-np.inf, np.inf, (1,)), "[1e60]"),
        (spaces.Box(-np.inf, np.inf, (1,)), "[1e400]"),
    ],
)
def test_no_other_action_is_made_of_a_number_or_brackets_that_cannot_be_read(space, text):
    wrapped = Recorder(space)
    environment = GymnasiumEnvironment(wrapped)
    environment.reset(1)
    assert environment.step(text).metrics["illegal_actions"] == 1
    assert not wrapped.taken


def test_brackets_by_the_thousand_are_not_read_from_each_of_them_again():
    environment = GymnasiumEnvironment(Recorder(spaces.Tuple([spaces.Discrete(2)])))
    environment.reset(1)
    began = time.process_time()
    environment.step("[" * 30_000)
    assert time.process_time() - began < 1.0


def test_texts_may_be_of_one_s_own():
    class Words(GymnasiumEnvironment):
        def describe(self, seat, observation, info):
            return f"field {observation}"

        def choose(self, seat, text):
            return {"S": 1, "E": 2}[text]

    lake = Words(gymnasium.make("FrozenLake-v1", is_slippery=False))
    assert lake.reset(1).startswith("field 0\n")
    assert lake.step("E").observation == "field 1"
    lake.close()


def test_what_cannot_be_made_is_refused_by_name():
    with pytest.raises(ConfigError, match="did you mean 'FrozenLake-v1'"):
        load_environment("gymnasium:FrozenLak-v1")
    with pytest.raises(ConfigError, match=r"can't be made with \{'slip': 3\}.*slip"):
        load_environment(LAKE, slip=3)
    with pytest.raises(ConfigError, match="option 'illegal' is 'shrug'; one of retry, penalty, forfeit is needed"):
        load_environment(LAKE, illegal="shrug")
    with pytest.raises(ConfigError, match="names none"):
        load_environment("gymnasium:")
    with pytest.raises(ConfigError, match="option 'actions' names 2 actions; there are 4"):
        load_environment(LAKE, actions=["a", "b"])().reset(1)


def test_arguments_whose_names_are_taken_reach_the_library_in_a_table():
    lake = load_environment(LAKE, arguments={"map_name": "8x8"})()
    assert lake.wrapped.observation_space.n == 64
    lake.close()
