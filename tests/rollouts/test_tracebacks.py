"""Tracebacks of user code: each distinct error's comes from the workers to whoever collects, once."""

from pathlib import Path

import pytest

from tinker_actors.actors import Mesh
from tinker_actors.environments import EnvironmentSpec
from tinker_actors.rollouts import EpisodeRaised, Retries, RolloutWorker, ScriptedSeat, collect, plan_groups
from tinker_actors.rollouts.tracebacks import MOST, Tracebacks

RAISING = """
from tinker_actors import Environment, Step


def copied(messages):
    return messages[-1].content


class Raising(Environment):
    def reset(self, seed):
        self.seed = seed
        return "go"

    def step(self, action):
        if self.seed % 3 == 0:
            self.look_up(f"seed {self.seed}")
        if self.seed % 3 == 1:
            raise ValueError("bad move: " + 100_000 * "x")
        return Step(reward=1.0, terminated=True)

    def look_up(self, key):
        return {}[key]


class Unclosed(Raising):
    def step(self, action):
        return Step(reward=1.0, terminated=True)

    def close(self):
        self.look_up("board")


class Unmade(Raising):
    def __init__(self):
        raise OSError("no board")
"""


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "raising.py"
    path.write_text(RAISING)
    return str(path)


def plan(step=0):
    return plan_groups(
        environment="raising",
        run_seed=0,
        phase="train",
        step=step,
        groups=6,
        group_size=2,
        seats={"agent": ScriptedSeat(function="copied")},
        tasks=range(6),
    )


async def spawned(mesh, source, **more):
    return await mesh.spawn(RolloutWorker, environment=EnvironmentSpec(source=source), tokenizer="tiny-llama", **more)


@pytest.mark.parametrize(
    ("node", "isolation", "pool"), [(0, "inline", ()), (0, "thread", ()), (1, "inline", ()), (0, "process", (1,))]
)
async def test_a_worker_sends_the_whole_traceback_of_each_distinct_error_once(source, node, isolation, pool):
    events = []
    async with Mesh(nodes=2) as mesh:
        worker = await spawned(
            mesh, f"{source}:Raising", node=node, isolation=isolation, environment_nodes=pool, name="worker"
        )
        for step in range(2):
            collected = await collect([worker], plan(step), on_event=events.append)
            assert len(collected.failures) == 8
    raised = [event for event in events if isinstance(event, EpisodeRaised)]
    keys, moves = sorted(raised, key=lambda event: "ValueError" in event.error)
    assert "KeyError: 'seed " in keys.traceback
    for line in ("in step\n    self.look_up(", "in look_up\n    return {}[key]\n"):
        assert line in keys.traceback
    assert "ValueError: bad move: xx" in moves.traceback
    assert all(len(event.traceback) < 33_000 for event in raised)
    assert keys.error.startswith("raising: step after seat 'agent', turn 0: KeyError: ")
    assert keys.episode.startswith("train-0-")


async def test_what_the_constructor_raises_comes_with_its_traceback(source):
    events = []
    async with Mesh(nodes=2) as mesh:
        await collect([await spawned(mesh, f"{source}:Unmade", node=1)], plan(), on_event=events.append)
    (raised,) = [event for event in events if isinstance(event, EpisodeRaised)]
    assert 'in __init__\n    raise OSError("no board")\n' in raised.traceback


async def test_what_the_close_raises_is_told_of_episodes_that_have_not_failed(source):
    events = []
    async with Mesh(nodes=2) as mesh:
        worker = await spawned(mesh, f"{source}:Unclosed", node=1)
        collected = await collect([worker], plan(), on_event=events.append)
    assert not collected.failures
    (raised,) = [event for event in events if isinstance(event, EpisodeRaised)]
    assert raised.error is None
    assert "in close\n    self.look_up(" in raised.traceback


async def test_the_traceback_of_an_episode_that_is_played_again_is_told_all_the_same(source):
    events = []
    async with Mesh() as mesh:
        worker = await spawned(mesh, f"{source}:Raising")
        await collect([worker], plan(), retries=Retries(failed=1), on_event=events.append)
    assert sum(isinstance(event, EpisodeRaised) for event in events) == 2


def text(line: int) -> str:
    return (
        f'Traceback (most recent call last):\n  File "a.py", line {line}, in step\n    go()\nValueError: {line * 7}\n'
    )


def test_errors_are_told_apart_by_their_frames_and_bounded_in_number():
    met = Tracebacks()
    assert met.is_new(text(1))
    assert not met.is_new(text(1).replace("ValueError: 7", "ValueError: another"))
    assert met.is_new("ValueError: one without frames")
    assert met.is_new("ValueError: another one")
    assert sum(met.is_new(text(line)) for line in range(2 * MOST)) == MOST - 3
