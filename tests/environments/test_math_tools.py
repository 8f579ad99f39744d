"""Arithmetic with a calculator."""

import random

import pytest
from boards import module_of

from tinker_actors.coordinator import run_episode
from tinker_actors.data import EpisodeEnd, Task
from tinker_actors.environments import ScriptedAgent, load_environment
from tinker_actors.errors import ConfigError

compute = module_of("math_tools").compute


async def begun(*, seed=0, luck=0, **options):
    environment = load_environment("math_tools", **options)()
    environment.rng = random.Random(luck)
    return environment, await environment.reset(seed)


async def played(*answers, seed=0, **options):
    replies = iter(answers)
    agent = ScriptedAgent(lambda messages: next(replies))
    environment = load_environment("math_tools", **options)()
    return await run_episode(environment, {"agent": agent}, task=Task(environment="math_tools", seed=seed), id="e")


def said(episode):
    return [message.content for turn in episode.trajectories[0].turns for message in turn.messages]


async def test_the_tool_computes_the_question_and_the_answer_earns_the_reward():
    environment, prompt = await begun(seed=4)
    right = str(environment.right)
    question = prompt.removesuffix("=")
    episode = await played(f"<{question}>", f" {right}\n", seed=4)
    assert said(episode) == [prompt, right]
    assert episode.trajectories[0].turns[1].messages[0].role == "tool"
    assert (episode.end, episode.trajectories[0].reward) == (EpisodeEnd.TERMINATED, 1.0)
    assert episode.metrics == {"tool_calls": 1.0, "tool_errors": 0.0}
    for answer, reward in ((right, 1.0), (f"{right}0", 0.0), ("", 0.0), (question, 0.0)):
        assert (await played(answer, seed=4)).trajectories[0].reward == reward


@pytest.mark.parametrize(
    "call", ["<>", "<2+>", "<2/3>", "<a+1>", "<2**9>", "<(1>", f"<{'1+' * 30}1>", "<1.5+1>", "<f(1)>"]
)
async def test_what_the_tool_can_not_compute_is_its_result_and_the_episode_goes_on(call):
    environment, _ = await begun()
    episode = await played(call, str(environment.right))
    assert said(episode)[1].startswith("error: ")
    assert (episode.trajectories[0].reward, episode.metrics["tool_errors"]) == (1.0, 1.0)


async def test_an_episode_of_calls_alone_is_truncated():
    episode = await played("<1+1>", "<1+1>", "<1+1>")
    assert (episode.end, episode.trajectories[0].reward) == (EpisodeEnd.TRUNCATED, 0.0)


async def test_other_forms_of_calls_work():
    environment, prompt = await begun(form="hermes")
    call = environment.toolbox.written("calc", expression=prompt.removesuffix("="))
    assert call.startswith("<tool_call>")
    assert (await played(call, str(environment.right), form="hermes")).trajectories[0].reward == 1.0


@pytest.mark.parametrize(
    ("expression", "value"), [("2+3", 5), (" 12*34 ", 408), ("5-9", -4), ("-(2+3)*4", -20), ("2*(3-(4-5))", 8)]
)
def test_expressions_are_computed(expression, value):
    assert compute(expression) == value


async def test_the_question_is_the_tasks_and_has_the_digits_asked_for():
    assert {(await begun(seed=9, luck=luck))[1] for luck in range(5)} == {(await begun(seed=9))[1]}
    asked = [(await begun(seed=seed, digits=1))[1] for seed in range(200)]
    assert {len(prompt) for prompt in asked} == {4}
    assert {prompt[1] for prompt in asked} == set("+-*")


async def test_demonstrations_are_as_good_as_they_say():
    rewards = []
    for number in range(300):
        environment, _ = await begun(seed=number, luck=number, skill=0.5)
        first = await environment.step(environment.demonstrate())
        assert not first.terminated
        rewards.append((await environment.step(environment.demonstrate())).reward)
    assert 0.17 < sum(rewards) / 300 < 0.35


@pytest.mark.parametrize("options", [{"digits": 0}, {"skill": 2.0}, {"held_out": 2}])
def test_options_that_cannot_work_are_refused(options):
    with pytest.raises(ConfigError, match=" is "):
        load_environment("math_tools", **options)()
