"""The example of two adapters in one game: its deals, its configuration, and that both seats learn from the start."""

from __future__ import annotations

from pathlib import Path

import pytest
from silent_observer import Silent

from tinker_actors.environments import load_environment
from tinker_actors.scheduler import RunFolder, check_job, load_config, run_job

FOLDER = Path(__file__).parents[2] / "examples" / "two_adapters_one_game"
GAME = load_environment(str(FOLDER / "environment.py"))


def dealt(offer: str, answer: str, unpaid: str = "") -> dict[str, float]:
    """The rewards of a deal."""
    game = GAME.environment(unpaid=unpaid)
    game.reset(0)
    step = game.step({"proposer": offer})
    return dict((step if step.terminated else game.step({"responder": answer})).reward or {})


@pytest.mark.parametrize(
    ("offer", "answer", "rewards"),
    [
        ("3", "y", {"proposer": 0.7, "responder": 0.3}),
        ("0", "y", {"proposer": 1.0, "responder": 0.0}),
        ("3", "n", {"responder": 0.25}),
        ("x", "y", {}),
        ("3", "?", {}),
    ],
)
def test_a_deal_pays_what_was_agreed_and_none_pays_the_responder_alone(
    offer: str, answer: str, rewards: dict[str, float]
):
    assert dealt(offer, answer) == pytest.approx(rewards)


def test_a_seat_without_pay_earns_nothing_and_the_other_one_what_it_would():
    assert dealt("3", "y", unpaid="responder") == {"proposer": 0.7, "responder": 0.0}


def test_the_configuration_has_a_policy_for_each_seat():
    config = load_config(FOLDER / "config.toml", ["--environment.name", str(FOLDER / "environment.py")])
    check_job(config)
    assert list(config.learners()) == list(GAME.environment.seats)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_both_seats_soon_earn_more(tmp_path: Path):
    own = {"environment.name": str(FOLDER / "environment.py"), "output": str(tmp_path / "run")}
    short = {"trainer.steps": "12", "evaluation.every": "0"}
    arguments = [part for key, value in (own | short).items() for part in (f"--{key}", value)]
    config = load_config(FOLDER / "config.toml", arguments)
    summary = await run_job(config, RunFolder.create(config), Silent())
    for seat in GAME.environment.seats:
        assert summary.more_after[f"reward/{seat}"] > summary.more_before[f"reward/{seat}"] + 0.03
