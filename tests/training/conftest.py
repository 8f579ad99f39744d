import itertools
import random

import pytest
import torch

from tinker_actors.data import EpisodeEnd, Trajectory, rl_datums, sft_datums, turns_from_prompts
from tinker_actors.policies import PolicySpec
from tinker_actors.training import AdamParams, LossConfig
from tinker_actors.training.engine import TrainingEngine

BASE = "tiny-llama"


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def engine(tmp_path):
    return TrainingEngine(BASE, tmp_path / "store")


@pytest.fixture
def make():
    return Maker()


class Maker:
    """Specs and datums with little typing."""

    def spec(self, name=None, **changes):
        return PolicySpec(**{"base_model": BASE, "rank": 4, "name": name, **changes})

    def trajectory(self, *turns, seat="agent"):
        """Each turn: whole prompt, action, and log-probs or None for -0.5 each."""
        pairs = [(prompt, action, logprobs or [-0.5] * len(action)) for prompt, action, logprobs in turns]
        return Trajectory(seat=seat, policy="p", turns=turns_from_prompts(pairs), end=EpisodeEnd.TERMINATED)

    def rl(self, prompt, action, advantage=1.0, logprobs=None):
        (datum,) = rl_datums(self.trajectory((prompt, action, logprobs)), advantage)
        return datum

    def sft(self, prompt, action, weight=1.0):
        (datum,) = sft_datums(self.trajectory((prompt, action, None)), weight=weight)
        return datum

    def batch(self, count=6, seed=0, kind="rl", longest=12):
        """Ragged datums with advantages of both signs."""
        luck = random.Random(seed)
        datums = []
        for index in range(count):
            prompt = [luck.randrange(7, 60) for _ in range(luck.randrange(1, longest))]
            action = [luck.randrange(7, 60) for _ in range(luck.randrange(1, longest))]
            if kind == "sft":
                datums.append(self.sft(prompt, action, weight=luck.uniform(0.2, 2)))
            else:
                logprobs = [luck.uniform(-6, -3) for _ in action]
                datums.append(self.rl(prompt, action, (-1) ** index * luck.uniform(0.2, 2), logprobs))
        return datums

    ppo = LossConfig(name="ppo")
    sft_loss = LossConfig(name="cross_entropy")
    adam = AdamParams(learning_rate=1e-2)

    def train(self, engine, policy, steps, first=0, loss=None):
        """Steps on batches that differ by step."""
        for step in range(first, first + steps):
            engine.forward_backward(policy, self.batch(seed=step), loss or self.ppo)
            engine.optim_step(policy, self.adam)


def state_of(engine, policy):
    """Everything that a policy's training depends on, as tensors to compare bit for bit."""
    held = engine._policies[policy]
    tensors = {f"weights/{name}": value for name, value in held.weights().items()}
    tensors |= {f"gradients/{name}": value for name, value in held.gradients().items()}
    tensors |= {f"optimizer/{name}": value for name, value in held.optimizer.state().items()}
    tensors["counts"] = torch.tensor([held.step, held.pending])
    tensors["random"] = held.generator.get_state()
    return {name: value.detach().clone() for name, value in tensors.items()}


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def flat(logprobs):
    return torch.tensor(list(itertools.chain.from_iterable(logprobs)))


@pytest.fixture
def exact():
    """`exact.state(engine, policy)` and `exact.same(state, state)`."""

    class Exact:
        state = staticmethod(state_of)
        same = staticmethod(same)
        flat = staticmethod(flat)

    return Exact
