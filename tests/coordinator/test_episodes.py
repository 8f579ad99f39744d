"""The one rollout path: turns, rewards, limits and failures, with one seat and with many."""

import asyncio
import logging

import pytest
from tests.coordinator.skipped_time import in_skipped_time

from tinker_actors.coordinator import EpisodeLimits, run_episode
from tinker_actors.data import EpisodeEnd, Task, TurnEnd
from tinker_actors.environments import Agent, Environment, ScriptedAgent, Step
from tinker_actors.errors import ConfigError

TASK = Task(environment="game", seed=4)


class Scenes(Environment):
    """Plays a list of steps; counts how often it is closed and remembers what it is told."""

    def __init__(self, first, *steps):
        self.first, self.steps = first, list(steps)
        self.heard, self.closed = [], 0

    def reset(self, seed):
        return self.first

    def step(self, action):
        self.heard.append(action)
        step = self.steps.pop(0)
        if isinstance(step, BaseException):
            raise step
        return step

    def close(self):
        self.closed += 1


class Duel(Scenes):
    seats = ("x", "o")


class Listening(Agent):
    """Says its name; remembers how the episode ended for it."""

    def __init__(self, name="a"):
        self.name, self.ends, self.seen = name, [], []

    async def act(self, messages):
        self.seen.append(messages[-1].content)
        return self.name

    async def finish(self, trajectory, error):
        self.ends.append((trajectory, error))


def over(**reward):
    return Step(reward=reward, terminated=True)


async def play(environment, limits=None, **agents):
    agents = agents or {"agent": Listening()}
    return await run_episode(environment, agents, task=TASK, id="e", seed=1, limits=limits)


async def test_a_single_seat_plays_to_the_end():
    agent = Listening("move")
    environment = Scenes(
        "start", Step(observation="next", reward=0.5, metrics={"m": 1}), Step(reward=1, truncated=True)
    )
    episode = await play(environment, agent=agent)
    assert (episode.id, episode.task, episode.end, episode.error) == ("e", TASK, EpisodeEnd.TRUNCATED, None)
    (trajectory,) = episode.trajectories
    assert [(turn.text, turn.reward) for turn in trajectory.turns] == [("move", 0.5), ("move", 1.0)]
    assert [turn.messages[0].content for turn in trajectory.turns] == ["start", "next"]
    assert (environment.heard, environment.closed, episode.metrics) == (["move", "move"], 1, {"m": 1.0})
    assert agent.ends == [(trajectory, None)]


async def test_turn_based_seats_act_one_at_a_time():
    x, o = Listening("x!"), Listening("o!")
    environment = Duel({"x": "1"}, Step(observation={"o": "2"}), Step(observation={"x": "3"}), over(x=1, o=-1))
    episode = await play(environment, x=x, o=o)
    assert environment.heard == [{"x": "x!"}, {"o": "o!"}, {"x": "x!"}]
    assert (x.seen, o.seen) == (["1", "3"], ["2"])
    assert [turn.reward for turn in episode.trajectory("x").turns] == [0.0, 1.0]
    # o is not acting when its reward arrives: it belongs to its last turn
    assert [turn.reward for turn in episode.trajectory("o").turns] == [-1.0]


async def test_simultaneous_seats_act_together_and_the_environment_hears_all_at_once():
    inside, both = set(), asyncio.Event()

    class Meets(Agent):
        def __init__(self, name):
            self.name = name

        async def act(self, messages):
            inside.add(self.name)
            if len(inside) == 2:
                both.set()
            await both.wait()
            return self.name

    environment = Duel({"o": "?", "x": "?"}, over(x=1))
    await asyncio.wait_for(play(environment, x=Meets("x"), o=Meets("o")), 60)
    assert environment.heard == [{"x": "x", "o": "o"}]


async def test_rewards_before_a_seats_first_turn_wait_for_it_or_are_a_windfall():
    environment = Duel({"x": "1"}, Step(observation={"o": "2"}, reward={"o": 2.0}), over(o=1.0))
    episode = await play(environment, x=Listening(), o=Listening())
    assert [turn.reward for turn in episode.trajectory("o").turns] == [3.0]
    episode = await play(Duel({"x": "1"}, over(o=2.0)), x=Listening(), o=Listening())
    assert (episode.trajectory("o").turns, episode.trajectory("o").windfall) == ((), 2.0)
    assert episode.trajectory("o").reward == 2.0


async def test_three_agents_give_three_trajectories_each():
    class Trio(Scenes):
        seats = ("a", "b", "c")

    first = dict.fromkeys(Trio.seats, "?")
    episodes = await asyncio.gather(
        *(
            run_episode(Trio(first, over(a=1)), {seat: Listening() for seat in Trio.seats}, task=TASK, id=f"e{number}")
            for number in range(2)
        )
    )
    assert [[entry.seat for entry in episode.trajectories] for episode in episodes] == [["a", "b", "c"]] * 2
    assert len({episode.id for episode in episodes}) == 2


async def test_frozen_seats_are_kept_but_not_trainable():
    class Learner(Listening):
        policy, trainable = "p-1", True

    episode = await play(Duel({"x": "1"}, Step(observation={"o": "2"}), over(x=1)), x=Learner(), o=Listening())
    assert [(entry.policy, entry.trainable) for entry in episode.trajectories] == [("p-1", True), (None, False)]
    assert episode.trajectory("o").turns[0].text == "a"


async def test_the_turn_limit_truncates():
    class Endless(Scenes):
        max_turns = 3

        def step(self, action):
            return Step(observation="again")

    assert len((await play(Endless("go"))).trajectories[0].turns) == 3
    episode = await play(Endless("go"), EpisodeLimits(max_turns=2))
    assert (len(episode.trajectories[0].turns), episode.end) == (2, EpisodeEnd.TRUNCATED)
    assert len((await play(Endless("go"), EpisodeLimits(max_turns=9))).trajectories[0].turns) == 3


async def test_an_environment_that_raises_fails_its_episode_with_its_turns():
    agent = Listening()
    environment = Scenes("start", Step(observation="next", reward=0.5), ValueError("bad move"))
    episode = await play(environment, agent=agent)
    assert episode.end is EpisodeEnd.FAILED
    assert episode.error.startswith("game: step after seat 'agent', turn 1: ValueError: bad move (test_episodes.py:")
    turns = episode.trajectories[0].turns
    assert [(turn.end, turn.reward) for turn in turns] == [(TurnEnd.STOP, 0.5), (TurnEnd.ENV_ERROR, 0.0)]
    assert environment.closed == 1
    assert agent.ends == [(episode.trajectories[0], episode.error)]


@pytest.mark.parametrize(
    "error", [SystemExit(3), asyncio.CancelledError(), StopIteration(), ExceptionGroup("g", [OSError()])]
)
async def test_whatever_an_environment_raises_is_data(error):
    episode = await play(Scenes("start", error))
    assert episode.end is EpisodeEnd.FAILED
    assert "turn 0" in episode.error


async def test_a_failing_reset_fails_the_episode_without_turns():
    class Broken(Scenes):
        async def reset(self, seed):
            raise OSError("no\nboard")

    environment = Broken("")
    episode = await play(environment)
    assert episode.error.startswith("game: reset: OSError: no board (")
    assert (episode.trajectories[0].turns, environment.closed) == ((), 1)


async def test_after_one_agent_raised_no_trace_of_the_others_appears():
    traces = []

    class Raises(Agent):
        async def act(self, messages):
            await asyncio.sleep(0)
            raise ValueError("lost")

    class Slow(Listening):
        async def act(self, messages):
            try:
                await asyncio.sleep(3600)
                traces.append("acted")
            finally:
                traces.append("left")
            return "late"

    slow = Slow()
    environment = Duel({"x": "1", "o": "1"}, over(x=1))
    episode = await asyncio.wait_for(play(environment, x=Raises(), o=slow), 60)
    assert traces == ["left"]  # it had been cancelled and had ended when the episode was returned
    assert (environment.heard, environment.closed) == ([], 1)
    assert episode.error.startswith("game: seat 'x', turn 0: ValueError: lost (")
    assert [[turn.end for turn in entry.turns] for entry in episode.trajectories] == [[TurnEnd.AGENT_ERROR], []]
    ((trajectory, error),) = slow.ends
    assert (trajectory.end, error) == (EpisodeEnd.FAILED, episode.error)


@pytest.mark.parametrize("error", [RuntimeError("sampler is gone"), asyncio.CancelledError(), SystemExit(1)])
async def test_the_other_player_hears_of_a_failed_one(error):
    class Dies(Agent):
        async def act(self, messages):
            raise error

    other = Listening()
    environment = Duel({"o": "1"}, Step(observation={"x": "2"}), over(x=1))
    episode = await asyncio.wait_for(play(environment, x=Dies(), o=other), 60)
    ((trajectory, told),) = other.ends
    assert told == episode.error
    assert told.startswith(f"game: seat 'x', turn 1: {type(error).__name__}")
    assert [turn.text for turn in trajectory.turns] == ["a"]


async def test_an_agent_that_is_too_slow_fails_the_episode_by_name():
    class Sleeps(Agent):
        async def act(self, messages):
            await asyncio.sleep(3600)
            return ""

    environment = Duel({"x": "1", "o": "1"}, over(x=1))
    episode = await play(environment, EpisodeLimits(turn_seconds=0.02), x=Sleeps(), o=Listening())
    assert episode.error == "game: seat 'x', turn 0: not done in time (turn_seconds 0.02)"
    assert [turn.end for turn in episode.trajectory("x").turns] == [TurnEnd.TIMEOUT]
    assert environment.closed == 1


async def test_an_environment_that_sleeps_for_ever_fails_in_time_and_its_other_turns_are_kept():
    class Sleeps(Scenes):
        async def step(self, action):
            if len(self.heard) == 1:
                await asyncio.sleep(3600)
            self.heard.append(action)
            return Step(observation="next", reward=1.0)

    environment = Sleeps("go")
    episode = await play(environment, EpisodeLimits(episode_seconds=0.02))
    assert episode.error == "game: step after seat 'agent', turn 1: not done in time (episode_seconds 0.02)"
    assert [turn.end for turn in episode.trajectories[0].turns] == [TurnEnd.STOP, TurnEnd.TIMEOUT]
    assert environment.closed == 1


async def test_a_deadline_holds_against_code_that_catches_its_cancellation():
    class Stubborn(Scenes):
        async def step(self, action):
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                return Step(observation="next")

    episode = await asyncio.wait_for(play(Stubborn("go"), EpisodeLimits(turn_seconds=0.02)), 60)
    assert episode.end is EpisodeEnd.FAILED
    assert "not done in time" in episode.error


async def test_a_close_that_raises_what_a_cancellation_does_is_data_after_a_seat_of_several_failed():
    class Raises(Agent):
        async def act(self, messages):
            await asyncio.sleep(0)
            raise ValueError("lost")

    class Slow(Agent):
        async def act(self, messages):
            await asyncio.sleep(3600)

    class Cancels(Duel):
        async def close(self):
            raise asyncio.CancelledError

    episode = await play(Cancels({"x": "1", "o": "1"}), x=Raises(), o=Slow())
    assert episode.end is EpisodeEnd.FAILED


@in_skipped_time
async def test_the_turn_deadline_begins_anew_with_each_turn():
    class Paces(Scenes):
        async def step(self, action):
            await asyncio.sleep(0.1)
            self.heard.append(action)
            return Step(observation="next") if len(self.heard) < 4 else Step(terminated=True)

    episode = await play(Paces("go"), EpisodeLimits(turn_seconds=0.35))
    assert (episode.end, episode.error) == (EpisodeEnd.TERMINATED, None)


async def test_cancelling_an_episode_cancels_it_and_still_closes_once():
    acting = asyncio.Event()

    class Waits(Listening):
        async def act(self, messages):
            acting.set()
            await asyncio.sleep(3600)

    agent, environment = Waits(), Scenes("go")
    task = asyncio.create_task(play(environment, agent=agent))
    await acting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert environment.closed == 1
    assert [error for _, error in agent.ends] == ["cancelled"]


async def test_a_close_that_fails_or_hangs_changes_nothing_but_the_log(caplog):
    class Hangs(Scenes):
        async def close(self):
            await asyncio.sleep(3600)

    class Raises(Scenes):
        def close(self):
            raise OSError("busy")

    for kind, named in ((Hangs, "not done in 0.02 s"), (Raises, "OSError: busy")):
        with caplog.at_level(logging.WARNING):
            agent = Listening()
            episode = await play(
                kind("go", Step(reward=1, terminated=True)), EpisodeLimits(close_seconds=0.02), agent=agent
            )
        assert (episode.end, episode.trajectories[0].reward) == (EpisodeEnd.TERMINATED, 1.0)
        assert named in caplog.text
        assert len(agent.ends) == 1


async def test_agents_that_do_not_fit_the_seats_are_refused():
    with pytest.raises(ConfigError, match=r"agents are given for seats \['x'\]; Duel has seats \['x', 'o'\]"):
        await play(Duel({"x": "1"}), x=Listening())


async def test_an_agent_that_returns_something_else_is_named():
    episode = await play(Scenes("go"), agent=ScriptedAgent(lambda messages: 3))
    assert "seat 'agent', turn 0: EpisodeError: a scripted agent returned 3 (int); text is needed" in episode.error


async def test_the_same_seed_gives_the_same_luck_and_another_one_other_luck():
    class Draws(Environment):
        def reset(self, seed):
            return str(self.rng.random())

        def step(self, action):
            return Step(terminated=True)

    async def drawn(seed):
        agent = Listening()
        await run_episode(Draws(), {"agent": agent}, task=TASK, id="e", seed=seed)
        return agent.seen

    assert await drawn(1) == await drawn(1) != await drawn(2)


@pytest.mark.parametrize("limits", [{"max_turns": 0}, {"turn_seconds": 0}, {"episode_seconds": float("inf")}])
def test_limits_that_cannot_work_are_refused(limits):
    with pytest.raises(ConfigError, match=f"{next(iter(limits))} is"):
        EpisodeLimits(**limits)
