"""What evaluations ask is never asked in training: by construction where questions are few, by the seeds elsewhere."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from tinker_actors.data import Message
from tinker_actors.environments import load_environment
from tinker_actors.rollouts import DemonstrationSeat, plan_groups
from tinker_actors.scheduler import RunConfig, load_config

ROOT = Path(__file__).parents[2]

FEW = {
    "arithmetic": ({}, 100),
    "math_tools": ({"digits": 1}, 300),
    "user_simulator": ({}, 12),
}
"""Environments whose questions a run soon has asked all: options, and how many questions there are."""

MANY = ("environments/last_word", "environments/zoom", "examples/smollm2_last_word")
"""Runs in environments that draw from so many questions that different seeds ask different ones."""


def asked(environment: Any, seeds: Iterable[int], *, evaluating: bool) -> set[object]:
    """What tasks ask: the text or the image that is shown, or else what stands behind it."""
    begin: Callable[[int], object] = getattr(environment, "begin", environment.reset)
    found: set[object] = set()
    for seed in seeds:
        environment.rng, environment.evaluating = random.Random(seed), evaluating
        shown = begin(seed)
        if hasattr(environment, "wish"):
            found.add(tuple(environment.wish.values()))
        elif hasattr(environment, "cards"):
            found.add((environment.target, *environment.cards.values()))
        else:
            found.add(shown.images if isinstance(shown, Message) and shown.images else str(shown))
    return found


@pytest.mark.parametrize("name", FEW)
def test_questions_that_are_few_are_divided_and_all_of_them_are_asked(name: str):
    options, questions = FEW[name]
    environment = load_environment(name, **options)()
    training, evaluation = (asked(environment, range(8 * questions), evaluating=held) for held in (False, True))
    assert not training & evaluation
    assert 0.99 * questions < len(training | evaluation) <= questions
    assert questions / 10 < len(evaluation) <= questions / 3


def test_evaluations_of_shapes_show_grounds_that_training_never_shows():
    environment = load_environment("shapes")()
    training, evaluation = (asked(environment, range(1000), evaluating=held) for held in (False, True))
    assert not training & evaluation


@pytest.mark.parametrize("folder", MANY)
def test_no_evaluation_of_a_shipped_run_asks_what_its_training_asks(folder: str):
    run = load_config(ROOT / folder / "config.toml", [])
    assert isinstance(run, RunConfig)
    environment = load_environment(run.environment.name, **run.environment.options)()
    for seed in range(1 if "zoom" in folder else 3):  # its pictures take long to draw
        train = [
            *tasks(seed, "warm-up", run.warmup.steps, run.warmup.episodes_per_step),
            *tasks(seed, "train", run.trainer.steps, run.rollouts.tasks_per_step),
        ]
        evaluation = tasks(seed, "eval", 1, run.evaluation.episodes)
        trained = asked(environment, train, evaluating=False)
        assert len(trained) > 100
        assert not trained & asked(environment, evaluation, evaluating=True)


def tasks(run_seed: int, phase: str, steps: int, groups: int) -> list[int]:
    """The seeds of the tasks of a run's phase."""
    plans = (
        plan_groups(
            environment="e",
            run_seed=run_seed,
            phase=phase,
            step=step,
            groups=groups,
            group_size=1,
            seats={"agent": DemonstrationSeat()},
            same_every_step=phase == "eval",
        )
        for step in range(1, steps + 1)
    )
    return [rollout.task.seed for plan in plans for rollout in plan.rollouts]
