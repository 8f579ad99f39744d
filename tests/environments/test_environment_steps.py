"""What an environment may return, how it is called, and that it is closed once."""

import asyncio
import threading

import pytest

from tinker_actors.data import Message
from tinker_actors.environments import Environment, LiveEnvironment, Step, WrongReturnError
from tinker_actors.errors import ConfigError


class One(Environment):
    """Returns what the test says."""

    def __init__(self, first="hello", then=None):
        self.first, self.then = first, then

    def reset(self, seed):
        return self.first

    def step(self, action):
        return self.then


class Two(One):
    seats = ("x", "o")


def live(environment):
    return LiveEnvironment(environment, luck=0)


@pytest.mark.parametrize(
    "observation", ["hi", Message(role="user", content="hi"), [Message(role="user", content="hi")], {"agent": "hi"}]
)
async def test_every_form_of_observation_becomes_messages(observation):
    assert await live(One(observation)).reset(1) == {"agent": (Message(role="user", content="hi"),)}


@pytest.mark.parametrize(
    ("first", "named"),
    [
        (None, "One.reset returned None"),
        (7, r"One.reset returned 7 \(int\)"),
        ([], "One.reset returned \\[\\]"),
        (["hi"], "non-empty sequence of Messages is needed"),
        ({"other": "hi"}, r"seats \['other'\]; its seats are \['agent'\]"),
        ({}, "empty mapping"),
    ],
)
async def test_a_wrong_reset_is_named_with_the_value_and_what_is_right(first, named):
    with pytest.raises(WrongReturnError, match=named):
        await live(One(first)).reset(1)


@pytest.mark.parametrize(
    ("then", "named"),
    [
        (1.0, r"One.step returned 1.0 \(float\); a Step is needed"),
        (Step(reward=1.0), "terminated=True to end"),
        (Step(reward=float("nan"), terminated=True), r"reward nan \(float\) for seat 'agent'; a finite number"),
        (Step(reward="1", terminated=True), r"reward '1' \(str\)"),
        (Step(terminated=True, metrics={"x": "y"}), r"metric 'x': 'y' \(str\)"),
    ],
)
async def test_a_wrong_step_is_named_with_the_value_and_what_is_right(then, named):
    with pytest.raises(WrongReturnError, match=named):
        await live(One(then=then)).step({"agent": "a"})


async def test_with_several_seats_plain_values_are_refused():
    with pytest.raises(WrongReturnError, match="a mapping of observations by acting seat"):
        await live(Two("hi")).reset(1)
    with pytest.raises(WrongReturnError, match=r"a mapping by seat is needed, such as \{'x': 1.0\}"):
        await live(Two(then=Step(reward=1.0, terminated=True))).step({"x": "a"})
    with pytest.raises(WrongReturnError, match="rewards for seats"):
        await live(Two(then=Step(reward={"z": 1.0}, terminated=True))).step({"x": "a"})


async def test_acting_seats_come_in_the_order_of_seats_whatever_the_mapping_says():
    assert list(await live(Two({"o": "1", "x": "2"})).reset(1)) == ["x", "o"]


async def test_async_methods_are_awaited():
    class Later(Environment):
        closed = False

        async def reset(self, seed):
            await asyncio.sleep(0)
            return str(seed)

        async def step(self, action):
            return Step(reward=1, terminated=True)

        async def close(self):
            self.closed = True

    environment = Later()
    running = live(environment)
    assert (await running.reset(3))["agent"][0].content == "3"
    assert (await running.step({"agent": "a"})).rewards == {"agent": 1.0}
    await running.close()
    assert environment.closed


async def test_blocking_methods_run_in_one_thread_that_is_not_the_loops():
    class Blocks(Environment):
        blocking = True

        def reset(self, seed):
            self.threads = [threading.current_thread()]
            return "go"

        def step(self, action):
            self.threads.append(threading.current_thread())
            return Step(terminated=True)

        def close(self):
            self.threads.append(threading.current_thread())

    environment = Blocks()
    running = live(environment)
    await running.reset(1)
    await running.step({"agent": "a"})
    await running.close()
    (thread,) = set(environment.threads)
    assert thread is not threading.main_thread()
    await asyncio.get_running_loop().run_in_executor(None, thread.join, 5)
    assert not thread.is_alive()


async def test_a_stuck_blocking_call_holds_up_nothing_and_close_follows_it():
    release, closed = threading.Event(), threading.Event()

    class Stuck(Environment):
        blocking = True

        def reset(self, seed):
            release.wait(30)
            return "go"

        def step(self, action):
            return Step(terminated=True)

        def close(self):
            closed.set()

    running = live(Stuck())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await running.reset(1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await running.close()
    assert not closed.is_set()
    release.set()
    assert await asyncio.to_thread(closed.wait, 60)


async def test_stop_iteration_in_a_thread_is_an_error_not_a_hang():
    class Ends(Environment):
        blocking = True

        def reset(self, seed):
            return next(iter(()))

        def step(self, action):
            return Step(terminated=True)

    running = live(Ends())
    with pytest.raises(RuntimeError, match="StopIteration"):
        await asyncio.wait_for(running.reset(1), 60)
    await running.close()


async def test_close_happens_once():
    class Counts(One):
        closed = 0

        def close(self):
            self.closed += 1

    environment = Counts()
    running = live(environment)
    await running.close()
    await running.close()
    assert environment.closed == 1


def test_luck_depends_on_its_seed_only():
    first, same, other = One(), One(), One()
    LiveEnvironment(first, luck=1)
    LiveEnvironment(same, luck=1)
    LiveEnvironment(other, luck=2)
    draws = [environment.rng.random() for environment in (first, same, other)]
    assert draws[0] == draws[1] != draws[2]


def test_seats_and_turns_that_cannot_work_are_refused_where_the_class_is_written():
    with pytest.raises(ConfigError, match=r"Typo.seats is 'agent'; a tuple of names"):

        class Typo(One):
            seats = "agent"

    with pytest.raises(ConfigError, match=r"Never.max_turns is 0"):

        class Never(One):
            max_turns = 0

    class Grows(One):
        def __init__(self, players):
            self.seats = tuple(f"p{player}" for player in range(players))

    assert live(Grows(3)).seats == ("p0", "p1", "p2")
    with pytest.raises(ConfigError, match=r"Grows.seats is \(\)"):
        live(Grows(0))


async def test_an_environment_without_demonstrations_says_so():
    with pytest.raises(ConfigError, match="One has no demonstrations; define demonstrate"):
        await live(One()).demonstrate("agent")
