"""RL with an advantage and a loss of one's own: rollouts, the objective, a step, a new snapshot, and again.

python examples/own_objective/train.py
"""

# ruff: noqa: T201 - it shows what it does

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Sequence

import torch

from tinker_actors import Environment, Mesh, Sampler, SamplingParams, Step, Trainer
from tinker_actors.algorithms import by_group, policy_batch, seat_groups
from tinker_actors.data import Datum
from tinker_actors.environments import load_environment
from tinker_actors.policies import PolicySpec
from tinker_actors.rollouts import PolicySeat, RolloutWorker, collect, plan_groups
from tinker_actors.training import AdamParams, forward_backward_custom

BASE = "tiny-llama"


class Letter(Environment):
    """The reward is how much of the answer is the letter that the task asks for."""

    def reset(self, seed: int) -> str:
        """Ask."""
        self.letter = "abcd"[seed % 4]
        return f"say {self.letter}"

    def step(self, action: str) -> Step:
        """Count."""
        return Step(reward=action.count(self.letter) / max(len(action), 1), terminated=True)


def ranks(rewards: Sequence[float]) -> list[float]:
    """A group's advantages: from -1 for the least reward to 1 for the largest, by rank alone; ties share theirs."""
    most = max(len(rewards) - 1, 1)
    return [(sum(r < own for r in rewards) - sum(r > own for r in rewards)) / most for own in rewards]


def bounded(datums: Sequence[Datum], logprobs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, dict[str, float]]:
    """-sum tanh(r - 1) * A: near r = 1 the policy gradient, and ever less of it the further the policy has moved."""
    loss, tokens = torch.zeros(()), 0
    for datum, row in zip(datums, logprobs, strict=True):
        trained = torch.tensor(datum.mask, dtype=torch.bool)
        ratio = (row - torch.tensor(datum.logprobs))[trained].exp()
        loss = loss - datum.scale * (torch.tanh(ratio - 1) * torch.tensor(datum.advantages)[trained]).sum()
        tokens += len(ratio)
    return loss, {"tokens": tokens}


async def train(store: str, steps: int) -> list[float]:
    """Train a new policy; the mean reward of each step."""
    letter = load_environment(f"{__file__}:Letter")
    rewards: list[float] = []
    async with Mesh() as mesh:  # Mesh(nodes=3) puts the actors into processes of their own
        trainer = await mesh.spawn(Trainer, base_model=BASE, store=store)
        sampler = await mesh.spawn(Sampler, base_model=BASE, store=store)
        worker = await mesh.spawn(RolloutWorker, environment=letter.spec, tokenizer=BASE)
        policy = await trainer.create(PolicySpec(base_model=BASE, rank=16))
        for step in range(1, steps + 1):
            snapshot = await trainer.publish(policy)
            await sampler.refresh([snapshot.handle])
            seat = PolicySeat(
                sampler=sampler, policy=policy, snapshot=snapshot.handle, params=SamplingParams(max_tokens=8)
            )
            plan = plan_groups(
                environment=letter.name,
                run_seed=0,
                phase="train",
                step=step,
                groups=8,
                group_size=16,
                seats={"agent": seat},
            )
            groups = seat_groups((await collect([worker], plan)).groups)[policy]
            found = [reward for group in groups for reward in group.rewards]
            rewards.append(sum(found) / len(found))
            batch = policy_batch(groups, by_group(ranks), "token_mean")
            if batch.datums:  # none where all rewards were equal
                await forward_backward_custom(trainer, policy, batch.datums, bounded)
                await trainer.optim_step(policy, AdamParams(learning_rate=1e-2, grad_clip_norm=1.0))
            if step == 1 or step % 5 == 0:
                print(f"step {step}: reward {rewards[-1]:.3f}", flush=True)
    return rewards


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as store:
        asyncio.run(train(store, asked.steps))


if __name__ == "__main__":
    main()
