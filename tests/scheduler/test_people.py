"""A person in a run's seat: one episode at a time in the run's own process, and no hurry."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tinker_actors.errors import ConfigError
from tinker_actors.scheduler import RunConfig, load_config
from tinker_actors.scheduler.line_ups import Players
from tinker_actors.telemetry import read_jsonl

SEATS = ("player", "opponent")
PLAYED = (
    *("--environment.name", "tic_tac_toe", "--model.name", "tiny-llama", "--policy.rank", "2"),
    *("--trainer.steps", "0", "--trainer.threads", "1", "--rollouts.max-tokens", "2", "--rollouts.turn-timeout", "0.2"),
    *("--rollouts.workers", "0", "--evaluation.episodes", "1", "--evaluation.seats.opponent.player", "person"),
    *("--warmup.method", "none"),
)


def test_a_person_is_not_asked_for_many_episodes_at_once():
    for override, name in (
        (("--evaluation.episodes", "2"), "evaluation.episodes is 2, and 1 is needed"),
        (("--rollouts.workers", "1"), "rollouts.workers is 1, and 0 is needed"),
        (("--seats.player.player", "person"), "rollouts.tasks_per_step x rollouts.group_size is 128, and 1 is needed"),
    ):
        config = load_config(None, [*PLAYED, *override])
        assert isinstance(config, RunConfig)
        with pytest.raises(ConfigError, match=name):
            Players.of(config, SEATS)


def test_an_evaluation_asks_the_person_and_waits(tmp_path: Path):
    run, config = tmp_path / "run", tmp_path / "config.toml"
    config.write_text("")
    process = subprocess.Popen(
        [sys.executable, "-m", "tinker_actors.cli", "run", str(config), "--output", str(run), *PLAYED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    output, _ = process.communicate(b"".join(b"%d\n" % square for square in range(1, 10)) * 4, timeout=250)
    assert process.returncode == 0, output.decode()
    (evaluation, *_) = [record for record in read_jsonl(run / "metrics.jsonl") if record["kind"] == "evaluation"]
    assert evaluation["failed"] == 0
    assert evaluation["players"]["opponent"] == "person"
