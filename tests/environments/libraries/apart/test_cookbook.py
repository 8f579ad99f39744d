"""Environments of tinker-cookbook, with its real renderers."""

import pytest

pytest.importorskip("tinker_cookbook")

import chz
from tinker_cookbook.renderers.role_colon import RoleColonRenderer
from tinker_cookbook.rl.message_env import EnvFromMessageEnv, MessageEnv, MessageStepResult
from tinker_cookbook.rl.problem_env import ProblemEnv, ProblemGroupBuilder
from tinker_cookbook.rl.types import Env, EnvGroupBuilder, RLDataset, RLDatasetBuilder, StepResult
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tinker_actors.coordinator import run_episode
from tinker_actors.data import Task
from tinker_actors.environments import ScriptedAgent, load_environment
from tinker_actors.environments.libraries import CookbookEnvironment
from tinker_actors.errors import ConfigError

pytestmark = pytest.mark.libraries
cleaned: list[str] = []


def renderer():
    """The cookbook's simplest renderer over bytes."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return RoleColonRenderer(PreTrainedTokenizerFast(tokenizer_object=tokenizer))


class Sum(ProblemEnv):
    def __init__(self, a, b):
        super().__init__(renderer(), convo_prefix=[{"role": "system", "content": "Add."}])
        self.a, self.b = a, b

    def get_question(self):
        return f"{self.a}+{self.b}="

    def check_answer(self, sample_str):
        return sample_str.strip() == str(self.a + self.b)

    def check_format(self, sample_str):
        return sample_str.strip().isdigit()

    def get_reference_answer(self):
        return str(self.a + self.b)


class Sums(RLDataset):
    def __init__(self, first):
        self.first = first

    def get_batch(self, index):
        return [ProblemGroupBuilder(lambda i=i: Sum(self.first + index, i), num_envs=4) for i in range(2)]

    def __len__(self):
        return 3


@chz.chz
class SumsBuilder(RLDatasetBuilder):
    first: int = 10

    async def __call__(self):
        return Sums(self.first), Sums(self.first + 50)


class Warmer(MessageEnv):
    def __init__(self):
        self.messages = [{"role": "user", "content": "Guess."}]

    async def initial_observation(self):
        return self.messages

    async def step(self, message):
        done = "7" in message["content"]
        self.messages = [*self.messages, message, {"role": "user", "content": "Warmer."}]
        return MessageStepResult(
            reward=float(done), episode_done=done, next_messages=self.messages, metrics={"right": float(done)}
        )


class WarmerGroup(EnvGroupBuilder):
    async def make_envs(self):
        return [EnvFromMessageEnv(renderer(), Warmer()) for _ in range(2)]

    async def compute_group_rewards(self, trajectory_group, env_group):
        assert [len(each.transitions) for each in trajectory_group] == [2]
        return [(0.5, {"grouped": 1.0}) for _ in env_group]

    async def cleanup(self):
        cleaned.append("group")


class Deaf(Env):
    async def initial_observation(self):
        raise AssertionError

    async def step(self, action, *, extra=None):
        return StepResult(reward=0.0, episode_done=True, next_observation=None, next_stop_condition=[])


class DeafGroup(EnvGroupBuilder):
    async def make_envs(self):
        return [Deaf()]


def script(*answers, seen=None):
    said = iter(answers)

    def answer(messages):
        if seen is not None:
            seen.append([(message.role, message.content) for message in messages])
        return next(said)

    return ScriptedAgent(answer)


async def played(environment, agent, seed=0):
    return await run_episode(environment, {"agent": agent}, task=Task(environment="cookbook", seed=seed), id="a")


async def test_problems_of_a_data_set_are_chosen_by_seed_and_scored():
    factory = load_environment(f"cookbook:{__name__}:SumsBuilder", first=20)
    seen = []
    right = await played(factory(), script("25", seen=seen), seed=4)  # batch 1, the second group: 21 + 1
    assert seen == [[("system", "Add."), ("user", "21+1=")]]
    assert right.error is None
    assert right.trajectory("agent").reward == 0.0
    assert (await played(factory(), script("22"), seed=4)).trajectory("agent").reward == 1.0
    assert (await played(factory(), script("so"), seed=4)).trajectory("agent").reward == pytest.approx(-0.1)


async def test_evaluations_use_the_test_set():
    environment = load_environment(f"cookbook:{__name__}:SumsBuilder")()
    environment.evaluating = True
    assert (await environment.reset(0))[-1].content == "60+0="


async def test_an_episode_of_several_turns_shows_what_is_new_and_adds_the_group_s_reward():
    cleaned.clear()
    seen = []
    episode = await played(CookbookEnvironment(WarmerGroup()), script("3", "It is 7", seen=seen))
    assert episode.error is None
    assert seen == [[("user", "Guess.")], [("user", "Warmer.")]]
    assert [turn.reward for turn in episode.trajectory("agent").turns] == [0.0, 1.5]
    assert episode.metrics == {"right": 1.0, "grouped": 1.0}
    assert cleaned == ["group"]


async def test_environments_without_a_renderer_are_refused():
    episode = await played(CookbookEnvironment(DeafGroup()), script("x"))
    assert "Deaf has no attribute 'renderer'" in episode.error


def test_what_is_no_builder_is_refused():
    with pytest.raises(ConfigError, match="isn't the name of a builder"):
        load_environment(f"cookbook:{__name__}:Nothing")
    with pytest.raises(ConfigError, match="makes Sum; an EnvGroupBuilder"):
        load_environment(f"cookbook:{__name__}:Sum", a=1, b=2)
