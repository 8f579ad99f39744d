"""How a step's numbers are shown."""

from __future__ import annotations

from tinker_actors.console.shown import step_line, step_numbers

STEP = {"reward": 0.5, "kl": 0.012, "tokens_per_second": 100.0, "grad_norm": 0.1, "seconds": 1.0}


def test_a_run_with_a_reference_shows_how_far_its_policy_is_from_it():
    referred = {**STEP, "kl_reference": 0.21}
    assert "kl to reference 0.21" in step_line(referred)
    assert step_numbers(referred, [])["kl to reference"] == "0.21"


def test_a_run_without_one_shows_how_far_the_sampled_policy_is():
    assert "kl 0.012" in step_line(STEP)
    assert step_numbers(STEP, [])["kl"] == "0.012"
