"""Rollouts ahead of training: which snapshot plays which step, how stale it gets, and that both really overlap."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tinker_actors.errors import ConfigError
from tinker_actors.rollouts import Collected
from tinker_actors.scheduler import RunFolder, load_config, run_job
from tinker_actors.scheduler.ahead import Ahead
from tinker_actors.scheduler.config import RunConfig
from tinker_actors.scheduler.versions import Version

ROOT = Path(__file__).parents[2]
SMALL = [
    *("--environment.name", f"{ROOT}/examples/async_rl/environment.py:DistantGuess"),
    *("--environment.options", "{latency = 0.3}", "--warmup.method", "none", "--rollouts.tasks-per-step", "2"),
    *("--rollouts.group-size", "4", "--rollouts.workers", "0", "--rollouts.max-tokens", "2"),
    *("--trainer.steps", "5", "--trainer.epochs", "2", "--trainer.threads", "1"),
    *("--evaluation.episodes", "2", "--evaluation.every", "0"),
]


class Silent:
    """An observer that looks away."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def version(number: int) -> Version:
    return Version(snapshots={"p": str(number)})


class Played:
    """Remembers with which version each step was played; a step lasts until it is let go."""

    def __init__(self) -> None:
        self.versions: dict[int, int] = {}
        self.go_on = asyncio.Event()

    async def __call__(self, step: int, version: Version) -> Collected:
        self.versions[step] = int(version.snapshots["p"])
        await self.go_on.wait()
        return Collected(groups=())


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("ahead", [0, 1, 2])
async def test_each_step_is_played_with_the_snapshot_that_its_number_names(ahead: int):
    played = Played()
    rollouts = Ahead(played, ahead=ahead, last=5, versions={0: version(0)})
    rollouts.begin()
    await settled()
    assert sorted(played.versions) == list(range(1, 2 + ahead) if ahead else [])
    played.go_on.set()
    for step in range(1, 6):
        await rollouts.take(step)
        rollouts.published(step, version(step))
        assert rollouts.bound == tuple(map(version, range(max(0, step - ahead), step + 1)))
        rollouts.begin()
        await settled()
        assert max(played.versions) == (min(5, step + 1 + ahead) if ahead else step)
    assert played.versions == {step: max(0, step - 1 - ahead) for step in range(1, 6)}
    await rollouts.stop()


async def test_a_resumed_run_plays_what_was_in_flight_with_the_snapshots_that_it_was_bound_to():
    played = Played()
    rollouts = Ahead(played, ahead=2, last=9, versions={number: version(number) for number in (2, 3, 4)})
    rollouts.begin()
    await settled()
    assert played.versions == {5: 2, 6: 3, 7: 4}
    await rollouts.stop()


async def test_a_run_that_is_resumed_further_ahead_takes_the_next_newer_snapshot_for_one_it_lacks():
    played = Played()
    rollouts = Ahead(played, ahead=2, last=9, versions={3: version(3), 4: version(4)})
    rollouts.begin()
    await settled()
    assert played.versions == {5: 3, 6: 3, 7: 4}
    await rollouts.stop()


async def run(tmp_path: Path, *overrides: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    config = load_config(None, [*SMALL, "--output", str(tmp_path / "run"), *overrides])
    folder = RunFolder.create(config)
    await run_job(config, folder, Silent())  # pyright: ignore[reportArgumentType]
    metrics = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    episodes = [json.loads(line) for line in folder.rollouts.read_text().splitlines()]
    return [entry for entry in metrics if entry["kind"] == "step"], episodes


async def test_updates_take_place_while_later_rollouts_are_under_way(tmp_path: Path):
    # an answer takes longer than what a busy machine needs from a rollout's begin to the update beside it
    steps, episodes = await run(tmp_path, "--rollouts.submit-ahead", "1", "--environment.options", "{latency = 1.5}")
    for before, after in pairwise(steps):
        assert after["at_rollout_begin"] < before["at_update_begin"]
        assert after["seconds_ahead"] > 0
    updates_amid_rollouts = [before["at_update_begin"] < after["at_rollout_end"] for before, after in pairwise(steps)]
    assert sum(updates_amid_rollouts) >= 2
    assert max(entry["staleness_max"] for entry in steps) <= 1 * 2 + 1  # a step is two optimizer steps
    assert {seat["staleness"] for entry in episodes for seat in entry["seats"]} <= {0, 2}


async def test_without_steps_ahead_nobody_plays_before_the_update_is_published(tmp_path: Path):
    steps, episodes = await run(tmp_path, "--trainer.steps", "3")
    for before, after in pairwise(steps):
        assert after["at_rollout_begin"] >= before["at_update_end"]
        assert after["seconds_ahead"] == 0
    assert {seat["staleness"] for entry in episodes for seat in entry["seats"]} == {0}


def config(*overrides: str) -> RunConfig:
    return load_config(None, ["--environment.name", "number_guess", *overrides])


@pytest.mark.parametrize(
    ("ahead", "epochs", "bound", "steps"),
    [(2, 1, None, 2), (2, 1, 1, 1), (2, 1, 0, 0), (3, 2, 5, 2), (3, 2, 4, 1), (0, 4, 3, 0), (1, 4, 7, 1)],
)
def test_rollouts_wait_so_that_none_exceeds_the_bound(ahead: int, epochs: int, bound: int | None, steps: int):
    limit = () if bound is None else ("--rollouts.max-staleness", str(bound))
    made = config("--rollouts.submit-ahead", str(ahead), "--trainer.epochs", str(epochs), *limit)
    assert made.steps_ahead == steps
    assert bound is None or made.steps_ahead * epochs + epochs - 1 <= bound


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["--rollouts.max-staleness", "2", "--trainer.epochs", "4"], r"max_staleness is 2; .* at least 3 is needed"),
        (["--rollouts.refresh", "turn", "--rollouts.lockstep", "off"], r"refresh is 'turn' and rollouts.lockstep"),
        (["--rollouts.submit-ahead", "1", "--algorithm.loss", "dro"], r"loss is 'dro' and rollouts.submit_ahead is 1"),
    ],
)
def test_what_cannot_work_ahead_is_refused(overrides: list[str], message: str):
    with pytest.raises(ConfigError, match=message):
        config(*overrides)
