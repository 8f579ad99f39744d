"""Environments of verifiers, played by its own harness in a process of its own."""

import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("verifiers.v1")

import verifiers.v1 as vf

from tinker_actors.coordinator import EpisodeLimits, run_episode
from tinker_actors.data import Task
from tinker_actors.environments import ScriptedAgent, load_environment
from tinker_actors.environments.libraries import VerifiersEnvironment
from tinker_actors.errors import ConfigError

__all__ = ["Sums"]
pytestmark = [pytest.mark.libraries, pytest.mark.timeout(300)]
NAME = f"verifiers:{__name__}"
LIMITS = EpisodeLimits(turn_seconds=200, episode_seconds=250)


class Sum(vf.TaskData):
    total: int


class SumTask(vf.Task[Sum]):
    @vf.reward
    async def right(self, trace) -> float:
        return float((trace.root_reply or "").strip() == str(self.data.total))

    @vf.metric
    async def length(self, trace) -> float:
        return float(len(trace.root_reply or ""))


class SumsConfig(vf.TasksetConfig):
    first: int = 20


class Sums(vf.Taskset[SumTask, SumsConfig]):
    def load(self):
        for b in range(5):
            a = self.config.first
            yield SumTask(Sum(prompt=f"{a}+{b}=", system_prompt="Add.", total=a + b), self.config.task)


@pytest.fixture(autouse=True)
def programs(monkeypatch, tmp_path):
    """`uv`, which the harness runs, lies beside the interpreter."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


async def played(environment, agent, seed):
    return await run_episode(
        environment, {"agent": agent}, task=Task(environment=NAME, seed=seed), id="a", limits=LIMITS
    )


async def test_a_task_is_asked_answered_and_scored_by_the_library():
    factory = load_environment(NAME, taskset={"first": 30})
    seen = []

    def answer(messages):
        seen.extend((message.role, message.content) for message in messages)
        return "33"

    episode = await played(factory(), ScriptedAgent(answer), seed=3)
    assert episode.error is None
    assert seen == [("system", "Add."), ("user", "30+3=")]
    assert (episode.end.value, episode.trajectory("agent").reward) == ("terminated", 1.0)
    assert episode.metrics == {"length": 2.0}
    wrong = await played(factory(), ScriptedAgent(lambda messages: "34"), seed=3)
    assert (wrong.error, wrong.trajectory("agent").reward) == (None, 0.0)


async def test_an_instance_plays_several_episodes_and_holds_tasks_back():
    environment = VerifiersEnvironment(VerifiersEnvironment.opened(__name__, {}), held_back=1)
    assert (await environment.reset(4))[-1].content == "20+0="
    environment.evaluating = True
    assert (await environment.reset(4))[-1].content == "20+4="
    assert (await environment.step("24")).reward == 1.0
    await environment.close()


def test_unknown_tasksets_are_refused():
    with pytest.raises(ConfigError, match="'nowhere_at_all' not found"):
        load_environment("verifiers:nowhere_at_all")
