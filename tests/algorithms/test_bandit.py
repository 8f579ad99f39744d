"""Every estimator teaches a policy of a few numbers which arm pays."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from tinker_actors.algorithms import ADVANTAGE_DEFAULTS, AdvantageConfig, SeatGroup, estimator
from tinker_actors.data import EpisodeEnd, ModelInput, Trajectory, Turn, TurnEnd

PAY = [0.1, 0.2, 0.8, 0.3]
ALONE = frozenset({"reinforce_pp", "role_baseline", "gae"})


def pulled(arm: int, reward: float) -> Trajectory:
    turn = Turn(observation=ModelInput.of([9]), action=(arm,), logprobs=(0.0,), end=TurnEnd.STOP, reward=reward)
    return Trajectory(seat="x", policy="p", turns=(turn,), end=EpisodeEnd.TERMINATED)


def chances(logits: list[float]) -> list[float]:
    weights = [math.exp(logit) for logit in logits]
    return [weight / sum(weights) for weight in weights]


@pytest.mark.parametrize("name", ADVANTAGE_DEFAULTS)
def test_it_learns_which_arm_pays(name: Any):
    luck = random.Random(1)
    logits, value = [0.0] * len(PAY), 0.0
    estimate = estimator(AdvantageConfig(name=name))
    size = 1 if name in ALONE else 8
    for _ in range(150):
        odds = chances(logits)
        arms = luck.choices(range(len(PAY)), odds, k=16)
        members = [pulled(arm, float(luck.random() < PAY[arm])) for arm in arms]
        groups = [
            SeatGroup(
                environment="e",
                seat="x",
                members=tuple(members[start : start + size]),
                values=(((value,),),) * size,
            )
            for start in range(0, len(members), size)
        ]
        signals = [signal for row in estimate(groups) for signal in row]
        for arm, signal in zip(arms, signals, strict=True):
            advantage = signal.advantage if isinstance(signal.advantage, float) else signal.advantage[0]
            step = 0.3 / len(arms) * (advantage if isinstance(advantage, float) else advantage[0])
            logits = [
                logit + step * ((index == arm) - odd)
                for index, (logit, odd) in enumerate(zip(logits, odds, strict=True))
            ]
        value += 0.2 * (sum(member.reward for member in members) / len(members) - value)
    expected = sum(odd * pay for odd, pay in zip(chances(logits), PAY, strict=True))
    assert expected > 0.5  # 0.35 by chance, 0.8 at best
