"""What the failure of a seat is worth: by the environment's rule, by its method, and by the run."""

import asyncio

import pytest
from tests.coordinator.skipped_time import in_skipped_time

from tinker_actors.coordinator import EpisodeClock, EpisodeLimits, run_episode
from tinker_actors.data import EpisodeEnd, Group, Task, TurnEnd
from tinker_actors.data.messages import ToolList
from tinker_actors.environments import Agent, Environment, Forfeit, Step
from tinker_actors.errors import ConfigError
from tinker_actors.rollouts import rollout_metrics

TASK = Task(environment="game", seed=4)


class Trio(Environment):
    """Each of three seats acts in turn, for ever; a move earns half a point."""

    seats = ("a", "b", "c")

    def reset(self, seed):
        self.moves = 0
        return {"a": "go"}

    def step(self, actions):
        self.moves += 1
        return Step(observation={self.seats[self.moves % 3]: "go"}, reward=dict.fromkeys(actions, 0.5))


class Loses(Trio):
    forfeit_rule = Forfeit.LOSS


class Teams(Loses):
    teams = {"home": ("a", "b")}  # noqa: RUF012


class Fails(Agent):
    """Acts until its n-th turn, then fails in its own way."""

    policy, trainable = "p", True

    def __init__(self, failure=None, turn=0):
        self.failure, self.left, self.heard = failure, turn, []

    async def act(self, messages):
        self.left -= 1
        if self.failure is None or self.left >= 0:
            return "move"
        if self.failure == "hangs":
            await asyncio.sleep(3600)
        raise self.failure

    async def finish(self, trajectory, error):
        self.heard.append((trajectory, error))


async def play(environment, limits=None, **agents):
    agents = {seat: Fails() for seat in environment.seats} | agents
    return await run_episode(environment, agents, task=TASK, id="e", seed=1, limits=limits)


def rewards(episode):
    return {entry.seat: entry.reward for entry in episode.trajectories}


@pytest.mark.parametrize(
    ("failure", "end"),
    [
        (ValueError("no"), TurnEnd.AGENT_ERROR),
        (asyncio.CancelledError(), TurnEnd.CANCELLED),
        ("hangs", TurnEnd.TIMEOUT),
    ],
    ids=str,
)
async def test_a_seat_that_fails_loses_and_the_others_win_what_comes_on_top_of_the_game(failure, end):
    agents = {"a": Fails(), "b": Fails(failure, turn=1), "c": Fails()}
    episode = await play(Loses(), EpisodeLimits(turn_seconds=0.05), **agents)
    assert episode.end is EpisodeEnd.FORFEITED
    assert episode.error.startswith("game: seat 'b', turn 4: ")
    assert rewards(episode) == {"a": 2.0, "b": -0.5, "c": 1.5}
    assert [entry.end for entry in episode.trajectories] == [
        EpisodeEnd.FORFEITED,
        EpisodeEnd.FAILED,
        EpisodeEnd.FORFEITED,
    ]
    last = episode.trajectory("b").turns[-1]
    assert (last.end, last.reward, last.action) == (end, -1.0, ())
    assert agents["a"].heard == [(episode.trajectory("a"), episode.error)]


async def test_training_sees_the_others_and_the_numbers_count_it():
    forfeited = await play(Loses(), b=Fails(ValueError("no")))
    dropped = await play(Trio(), b=Fails(ValueError("no")))
    group = Group(task=TASK, episodes=(forfeited, dropped))
    assert group.valid == (forfeited,)
    assert group.trainable_seats == ("a", "c")
    assert group.trajectories("b") == ()
    numbers = rollout_metrics([group])
    assert (numbers["episodes"], numbers["failed"], numbers["forfeited"]) == (2, 1, 1)
    assert "reward/b" not in numbers


async def test_a_draw_gives_nobody_anything_and_the_default_drops_the_episode():
    class Draws(Trio):
        forfeit_rule = Forfeit.DRAW

    episode = await play(Draws(), b=Fails(ValueError("no")))
    assert (episode.end, rewards(episode)) == (EpisodeEnd.FORFEITED, {"a": 0.5, "b": 0.0, "c": 0.0})
    assert (await play(Trio(), b=Fails(ValueError("no")))).end is EpisodeEnd.FAILED


async def test_the_run_has_the_last_word():
    failing = {"b": Fails(ValueError("no"), turn=0)}
    assert (await play(Trio(), EpisodeLimits(forfeit=Forfeit.LOSS), **failing)).end is EpisodeEnd.FORFEITED
    assert (await play(Loses(), EpisodeLimits(forfeit=Forfeit.DROP), **failing)).end is EpisodeEnd.FAILED
    episode = await play(Loses(), EpisodeLimits(forfeit=Forfeit.DRAW), **failing)
    assert rewards(episode) == {"a": 0.5, "b": 0.0, "c": 0.0}


async def test_a_team_loses_together():
    episode = await play(Teams(), b=Fails(ValueError("no"), turn=0))
    assert rewards(episode) == {"a": -0.5, "b": -1.0, "c": 1.0}
    assert [entry.windfall for entry in episode.trajectories] == [0.0, 0.0, 1.0]


async def test_an_environment_may_say_itself_what_a_failure_is_worth():
    class Says(Trio):
        forfeit_rule = Forfeit.LOSS

        async def forfeit(self, failed, rule):
            self.asked = (failed, rule)
            return {"a": 3.0} if self.moves else None

    environment = Says()
    episode = await play(environment, b=Fails(ValueError("no")))
    assert (rewards(episode)["a"], environment.asked) == (3.5, (("b",), Forfeit.LOSS))
    assert (await play(Says(), a=Fails(ValueError("no")))).end is EpisodeEnd.FAILED


@pytest.mark.parametrize(
    ("returned", "named"),
    [(OSError("no board"), "forfeit: OSError: no board"), (3, "None is needed to drop"), ({"z": 1.0}, "seats ['z']")],
    ids=str,
)
async def test_a_forfeit_that_cannot_be_used_drops_the_episode_and_is_named(returned, named):
    class Breaks(Loses):
        def forfeit(self, failed, rule):
            if isinstance(returned, Exception):
                raise returned
            return returned

    episode = await play(Breaks(), b=Fails(ValueError("no")))
    assert episode.end is EpisodeEnd.FAILED
    assert "ValueError: no" in episode.error
    assert named in episode.error


async def test_a_forfeit_that_hangs_is_given_up():
    class Hangs(Loses):
        async def forfeit(self, failed, rule):
            await asyncio.sleep(3600)

    episode = await play(Hangs(), EpisodeLimits(close_seconds=0.02), b=Fails(ValueError("no")))
    assert episode.error.endswith("forfeit: not done in 0.02 s")


class Together(Loses):
    def reset(self, seed):
        return dict.fromkeys(self.seats, "go")


async def test_all_that_are_late_forfeit_together_and_nobody_wins_if_that_is_everyone():
    late = EpisodeLimits(turn_seconds=0.02)
    episode = await play(Together(), late, b=Fails("hangs"), c=Fails("hangs"))
    assert episode.error == "game: seats 'b', 'c', turn 0: not done in time (turn_seconds 0.02)"
    assert rewards(episode) == {"a": 1.0, "b": -1.0, "c": -1.0}
    everyone = {seat: Fails("hangs") for seat in Trio.seats}
    assert (await play(Together(), late, **everyone)).end is EpisodeEnd.FAILED


@in_skipped_time
async def test_a_seat_may_have_less_time_than_the_others():
    limits = EpisodeLimits(turn_seconds=3600, seat_seconds={"b": 0.02})
    episode = await asyncio.wait_for(play(Together(), limits, b=Fails("hangs"), a=Fails("hangs")), 60)
    assert episode.error == "game: seat 'b', turn 0: not done in time (seat_seconds of 'b' 0.02)"
    assert rewards(episode)["b"] == -1.0


async def test_no_seat_is_to_blame_when_the_whole_episode_runs_out_of_time_or_the_environment_fails():
    episode = await play(Loses(), EpisodeLimits(episode_seconds=0.02), b=Fails("hangs"))
    assert episode.end is EpisodeEnd.FAILED

    class Raises(Loses):
        def step(self, actions):
            raise ValueError("bad board")

    assert (await play(Raises())).end is EpisodeEnd.FAILED


@in_skipped_time
async def test_a_seats_time_stands_still_while_others_hold_the_episode_up():
    clock = EpisodeClock()

    class Held(Agent):
        async def act(self, messages):
            for _ in range(2):
                with clock.stopped():
                    await asyncio.sleep(0.15)
                await asyncio.sleep(0)
            return "move"

    agents = {seat: Held() if seat == "a" else Fails(ValueError("stop")) for seat in Trio.seats}
    limits = EpisodeLimits(seat_seconds={"a": 0.1})
    episode = await run_episode(Loses(), agents, task=TASK, id="e", limits=limits, clock=clock)
    assert "seat 'b', turn 1: ValueError: stop" in episode.error


async def test_an_agent_that_hides_its_cancellation_is_late_all_the_same():
    class Hides(Agent):
        async def act(self, messages):
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                return "late"

    for limits in (EpisodeLimits(turn_seconds=0.02), EpisodeLimits(seat_seconds={"a": 0.02})):
        episode = await play(Loses(), limits, a=Hides())
        assert "seat 'a', turn 0: not done in time" in episode.error
        assert episode.end is EpisodeEnd.FORFEITED


async def test_a_seat_that_cannot_take_its_tools_has_failed():
    class Refuses(Fails):
        async def equip(self, tools):
            raise ValueError("no such tool")

    class Equips(Loses):
        def tool_list(self, seat):
            return ToolList(schemas=(), described="none") if seat == "b" else None

    episode = await play(Equips(), b=Refuses())
    assert episode.end is EpisodeEnd.FORFEITED
    assert "seat 'b', turn 0: ValueError: no such tool" in episode.error


async def test_limits_of_seats_that_are_not_there_are_refused():
    with pytest.raises(ConfigError, match=r"seat_seconds names seats \['z'\]; Trio has seats \['a', 'b', 'c'\]"):
        await play(Trio(), EpisodeLimits(seat_seconds={"z": 1.0}))
    with pytest.raises(ConfigError, match=r"seat_seconds\['a'\] is 0"):
        EpisodeLimits(seat_seconds={"a": 0})


@pytest.mark.parametrize(
    ("attributes", "named"),
    [
        ({"teams": {"a": ("b",)}}, "a team 'a'; a name that no seat bears"),
        ({"teams": {"home": ("z",)}}, "names seat 'z'"),
        ({"teams": {"home": ("a",), "away": ("a", "b")}}, "seat 'a' in 'home' and 'away'"),
        ({"forfeit_rule": "loss"}, "forfeit_rule is 'loss'"),
        ({"turn_order": "free"}, "turn_order is 'free'"),
    ],
    ids=str,
)
def test_rules_that_cannot_be_kept_are_refused_where_they_are_declared(attributes, named):
    with pytest.raises(ConfigError, match=named):
        type("Wrong", (Trio,), attributes)
