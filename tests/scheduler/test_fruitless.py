"""What a run says where its first steps teach nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.scheduler.silent_observer import Silent

from tinker_actors.scheduler import RunFolder, load_config, run_job
from tinker_actors.scheduler.fruitless import Fruitless

SMALL = [
    *("--rollouts.tasks-per-step", "1", "--rollouts.group-size", "2", "--rollouts.max-tokens", "2"),
    *("--rollouts.workers", "0", "--trainer.steps", "7", "--trainer.threads", "1"),
    *("--evaluation.episodes", "1", "--evaluation.every", "0", "--checkpoints.every", "9"),
]
NUMBERS = {"grad_norm": 0.0, "episodes": 8.0, "failed": 0.0, "action_tokens": 16.0, "reward": 0.5}


class Listening(Silent):
    """Remembers the notes."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


async def notes(folder: Path, shown: str, reward: str) -> list[str]:
    """Those of seven steps in an environment that shows and pays so."""
    environment = folder / "flat.py"
    environment.write_text(
        "from tinker_actors import Environment, Step\n"
        "class Flat(Environment):\n"
        f"    def reset(self, seed): return {shown}\n"
        f"    def step(self, action): return Step(reward={reward}, terminated=True)\n"
    )
    config = load_config(None, [*SMALL, "--environment.name", str(environment), "--output", str(folder / "run")])
    observer = Listening()
    await run_job(config, RunFolder.create(config), observer)
    return observer.notes


async def test_equal_rewards_are_told_of_once(tmp_path: Path):
    (note,) = await notes(tmp_path, "'go'", "0.25")
    assert note.startswith(
        "nothing was learned in 5 steps: within each group all rewards were equal (their mean is 0.25"
    )


async def test_prompts_that_leave_no_room_are_told_of(tmp_path: Path):
    (note,) = await notes(tmp_path, "'x' * 600", "0.0")
    assert note.startswith("nothing was sampled in 5 steps")
    assert "room for a reply in the model's context" in note


async def test_a_run_that_learns_is_not_spoken_to(tmp_path: Path):
    assert await notes(tmp_path, "'go'", "self.rng.random()") == []


@pytest.mark.parametrize(
    "unlike",
    [{"grad_norm": 0.1}, {"grad_norm": float("nan")}, {"failed": 8.0, "action_tokens": 0.0}],
    ids=["a gradient", "a gradient that no service tells", "failures, which are told of each time"],
)
def test_five_steps_of_equal_rewards_are_needed_from_the_beginning(unlike: dict[str, float]):
    fruitless = Fruitless()
    said = [fruitless.after(NUMBERS | (unlike if step == 4 else {})) for step in range(12)]
    assert said == [None] * 12


def test_a_service_that_tells_no_gradient_is_taken_to_learn():
    fruitless = Fruitless()
    silent = {name: value for name, value in NUMBERS.items() if name != "grad_norm"}
    assert [fruitless.after(silent) for _ in range(9)] == [None] * 9
