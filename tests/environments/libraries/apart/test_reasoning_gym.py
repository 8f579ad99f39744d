"""Data sets of reasoning-gym, as they are."""

import pytest

reasoning_gym = pytest.importorskip("reasoning_gym")

from tinker_actors.coordinator import run_episode  # noqa: E402
from tinker_actors.data import Task  # noqa: E402
from tinker_actors.environments import ScriptedAgent, load_environment  # noqa: E402
from tinker_actors.environments.libraries import ReasoningGymEnvironment  # noqa: E402
from tinker_actors.errors import ConfigError  # noqa: E402

pytestmark = pytest.mark.libraries
NAME = "reasoning_gym:basic_arithmetic"


def question(task, /, *, evaluating=False, **options):
    environment = load_environment(NAME, **options)()
    environment.evaluating = evaluating
    return environment.reset(task).content


async def test_the_right_answer_earns_a_point_and_a_wrong_one_none():
    environment = load_environment(NAME)()
    rewards = []
    for answer in [lambda: environment.entry["answer"], lambda: "<answer>x</answer>", environment.demonstrate]:
        agents = {"agent": ScriptedAgent(lambda messages, answer=answer: answer())}
        episode = await run_episode(environment, agents, task=Task(environment=NAME, seed=4), id="a")
        assert episode.error is None
        rewards.append(episode.trajectory("agent").reward)
    assert rewards == [1.0, 0.0, 1.0]


def test_seeds_name_questions_and_evaluations_have_others():
    assert question(4) == question(4) != question(5)
    assert question(4) != question(4, evaluating=True)
    assert question(4) == question(14, size=10)
    assert question(4, seed=1) == question(5)


def test_options_reach_the_data_set():
    assert "+" in question(1, min_terms=2, max_terms=2, operators=["+"])


def test_a_system_message_may_ask_for_the_form_of_answers():
    messages = load_environment(NAME, prompt="direct")().reset(1)
    assert [message.role for message in messages] == ["system", "user"]
    assert "<answer>" in messages[0].content


def test_a_data_set_may_be_wrapped():
    dataset = reasoning_gym.create_dataset("chain_sum", seed=3, size=5)
    environment = ReasoningGymEnvironment(dataset)
    assert environment.reset(7).content == dataset[2]["question"]


def test_unknown_data_sets_and_options_are_refused():
    with pytest.raises(ConfigError, match="did you mean 'basic_arithmetic'"):
        load_environment("reasoning_gym:basic_aritmetic")
    with pytest.raises(ConfigError, match=r"can't be made with .*'terms'"):
        load_environment(NAME, terms=3)
