"""Learning rates by step."""

from __future__ import annotations

import math

import pytest

from tinker_actors.training.schedules import scheduled


def test_every_schedule_rises_over_the_warm_up_to_its_peak():
    for schedule in ("constant", "linear", "cosine"):
        rates = [scheduled(schedule, 8.0, step=step, total=20, warmup=4) for step in range(1, 6)]
        assert rates == pytest.approx([2.0, 4.0, 6.0, 8.0, 8.0])


def test_schedules_fall_towards_their_floor():
    def at(schedule, step: int) -> float:
        return scheduled(schedule, 1.0, step=step, total=10, floor=0.2)

    assert [at("constant", step) for step in (1, 10)] == [1.0, 1.0]
    assert at("linear", 6) == pytest.approx(0.2 + 0.8 * 0.5)
    assert at("cosine", 6) == pytest.approx(0.2 + 0.8 * 0.5)
    assert at("cosine", 3) == pytest.approx(0.2 + 0.8 * 0.5 * (1 + math.cos(0.2 * math.pi)))
    assert at("linear", 10) == pytest.approx(0.2 + 0.8 * 0.1)
    assert at("linear", 50) == pytest.approx(0.2)


def test_a_rate_depends_on_the_step_alone():  # R3
    rates = [scheduled("linear", 0.1, step=step, total=10) for step in range(1, 11)]
    assert rates[4] == scheduled("linear", 0.1, step=5, total=10) == pytest.approx(0.06)
