"""Environments of verifiers, played by its own harness in a process of its own."""

import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("verifiers.v1")

import openai
import verifiers.v1 as vf

from tinker_actors.coordinator import EpisodeLimits, run_episode
from tinker_actors.data import Task
from tinker_actors.environments import ScriptedAgent, load_environment
from tinker_actors.environments.libraries import VerifiersEnvironment
from tinker_actors.errors import ConfigError

__all__ = ["Caller", "Sums"]
pytestmark = [pytest.mark.libraries, pytest.mark.timeout(300)]
NAME = f"verifiers:{__name__}"
LIMITS = EpisodeLimits(turn_seconds=200, episode_seconds=250)


class Sum(vf.TaskData):
    total: int


class SumTask(vf.Task[Sum]):
    @vf.reward
    async def right(self, trace) -> float:
        return float(trace.last_reply == str(self.data.total))

    @vf.metric
    async def length(self, trace) -> float:
        return float(len(trace.last_reply))


class SumsConfig(vf.TasksetConfig):
    first: int = 20
    count: int = 5


class Sums(vf.Taskset[SumTask, SumsConfig]):
    def load(self):
        for b in range(self.config.count):
            a = self.config.first
            yield SumTask(Sum(prompt=f"{a}+{b}=", system_prompt="Add.", total=a + b), self.config.task)


ADD = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}


class Caller(vf.Harness[vf.HarnessConfig]):
    """Asks with a tool, answers the call, and asks again: each time twice, as a client does that lost a response."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        async with openai.AsyncOpenAI(base_url=endpoint, api_key=secret) as client:
            messages = [{"role": "user", "content": data.prompt}]
            first = await client.chat.completions.create(model=ctx.model, messages=messages, tools=[ADD])
            said = first.choices[0].message
            (call,) = said.tool_calls
            result = {
                "role": "tool",
                "tool_call_id": call.id,
                "content": f"{call.function.name} {call.function.arguments}",
            }
            messages += [said.model_dump(exclude_none=True), result]
            await client.chat.completions.create(model=ctx.model, messages=messages, tools=[ADD])
            await client.chat.completions.create(model=ctx.model, messages=messages, tools=[ADD])
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


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


async def test_no_more_tasks_are_held_back_than_there_are():
    source = VerifiersEnvironment.opened(__name__, {})
    with pytest.raises(ConfigError, match="option 'held_back' is -1; an integer of at least 0 is needed"):
        VerifiersEnvironment(source, held_back=-1)
    environment = VerifiersEnvironment(source, held_back=7)
    with pytest.raises(ConfigError, match="option 'held_back' is 7; fewer than the 5 tasks"):
        await environment.reset(4)


async def test_a_taskset_that_is_empty_is_named():
    environment = load_environment(NAME, taskset={"count": 0})()
    with pytest.raises(ConfigError, match="taskset Sums yields no task; at least 1 is needed"):
        await environment.reset(4)


async def test_tools_are_told_to_the_seat_and_called_by_its_text():
    environment = load_environment(NAME, agent={"harness": {"id": __name__}})()
    first = await environment.reset(3)
    assert first[-1].content == "20+3="
    assert environment.tool_list().schemas[0]["function"]["name"] == "add"
    second = (await environment.step('<tool_call>{"name": "add", "arguments": {"a": 3}}</tool_call>')).observation
    assert [(message.role, message.content) for message in second] == [("tool", 'add {"a": 3}')]
    last = await environment.step("23")  # the request that is made again gets the same answer
    assert (last.terminated, last.reward) == (True, 1.0)
    await environment.close()


def test_unknown_tasksets_are_refused():
    with pytest.raises(ConfigError, match="'nowhere_at_all' not found"):
        load_environment("verifiers:nowhere_at_all")
