"""Train a policy to write one letter, in this process, against `tinker-actors serve`, or at a Tinker service.

python examples/service_client/train.py --root runs/service_client
python examples/service_client/train.py --url http://127.0.0.1:8400 --model tiny-llama
python examples/service_client/train.py --model Qwen/Qwen3-8B --learning-rate 1e-4  # $TINKER_API_KEY says whose
"""

# ruff: noqa: T201 - it shows what it does

from __future__ import annotations

import argparse
import asyncio

from tinker_actors import ServiceClient
from tinker_actors.client import TrainingClient
from tinker_actors.data import Datum, EpisodeEnd, Trajectory, rl_datums, turns_from_prompts
from tinker_actors.sampling import Sample, SamplingParams
from tinker_actors.training import AdamParams

PROMPTS = ("a", "to be", "123", "Once")
SAMPLES, TOKENS = 16, 8


def reward(text: str) -> float:
    """How much of a text is the letter."""
    return text.count("e") / max(len(text), 1)


async def step(training: TrainingClient, seed: int, learning_rate: float) -> float:
    """Sample from the present weights and learn from it; the mean reward before."""
    sampling = await training.save_weights_and_get_sampling_client()
    tokenizer = sampling.get_tokenizer()
    prompts = [tokenizer.encode(prompt) for prompt in PROMPTS]
    params = SamplingParams(max_tokens=TOKENS, default_stops=False, seed=seed)
    replies = await asyncio.gather(*(sampling.sample(prompt, SAMPLES, params) for prompt in prompts))
    rewards = [[reward(sample.text) for sample in reply.samples] for reply in replies]
    data = [
        datum
        for prompt, reply, group in zip(prompts, replies, rewards, strict=True)
        for sample, own in zip(reply.samples, group, strict=True)
        for datum in datums(prompt, sample, own - sum(group) / len(group))
    ]
    passed = training.forward_backward(data, "importance_sampling")
    stepped = training.optim_step(AdamParams(learning_rate=learning_rate))
    await passed
    await stepped
    return sum(map(sum, rewards)) / (len(PROMPTS) * SAMPLES)


def datums(prompt: list[int], sample: Sample, advantage: float) -> tuple[Datum, ...]:
    """A sample as what is trained on."""
    turns = turns_from_prompts([(prompt, sample.tokens, sample.logprobs)])
    trajectory = Trajectory(seat="writer", policy="writer", turns=turns, end=EpisodeEnd.TERMINATED)
    return rl_datums(trajectory, advantage)


async def train(service: ServiceClient, model: str, steps: int, learning_rate: float = 2e-2) -> list[float]:
    """Train a new policy; the mean reward of each step."""
    training = await service.create_lora_training_client(model, rank=8, seed=1)
    rewards: list[float] = []
    for number in range(steps):
        rewards.append(await step(training, number, learning_rate))
        print(f"step {number}: reward {rewards[-1]:.3f}", flush=True)
    saved = await training.save_weights_for_sampler("final")
    print(f"saved {saved.path}")
    return rewards


async def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", help="train in this process, and keep everything in this folder")
    parser.add_argument("--url", help="of a service; the official one's if neither is given")
    parser.add_argument("--model", default="tiny-llama", help="name of the base model")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--learning-rate", type=float, default=2e-2, help="for tiny models; 1e-4 suits large ones")
    asked = parser.parse_args()
    service = ServiceClient.local(asked.model, root=asked.root) if asked.root else ServiceClient(asked.url)
    async with service:
        await train(service, asked.model, asked.steps, asked.learning_rate)


if __name__ == "__main__":
    asyncio.run(main())
