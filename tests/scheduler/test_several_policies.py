"""Several policies in one game, and opponents that don't learn: who moves, by whose rewards, and what is recorded."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.scheduler.silent_observer import Silent

from tinker_actors.errors import ConfigError
from tinker_actors.scheduler import RunFolder, load_config, run_job

GAME = f"{Path(__file__).with_name('letters_game.py')}"
SMALL = [
    *("--environment.name", GAME, "--policy.rank", "4", "--rollouts.tasks-per-step", "2", "--rollouts.group-size", "4"),
    *("--rollouts.max-tokens", "2", "--rollouts.workers", "0", "--rollouts.transcripts-per-step", "99"),
    *("--trainer.steps", "2", "--trainer.learning-rate", "5e-3", "--trainer.threads", "1"),
    *("--evaluation.episodes", "4", "--evaluation.every", "0"),
]
BOTH = ["--policies.x.rank", "4", "--policies.o.rank", "2"]
SCRIPT = ["--seats.o.player", "script", "--seats.o.function", "drawn"]


async def played(root: Path, *overrides: str) -> Path:
    config = load_config(None, [*SMALL, "--output", str(root), *overrides])
    await run_job(config, RunFolder.create(config), Silent())
    return root


def state(root: Path, policy: str, step: int) -> dict[str, torch.Tensor]:
    """Weights, moments and random numbers."""
    folder = root / "policies" / policy / "weights" / f"step-{step:06d}"
    return {**load_file(folder / "weights.safetensors"), **load_file(folder / "training_state.safetensors")}


def equal(one: Mapping[str, torch.Tensor], two: Mapping[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def records(path: Path, **where: Any) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [entry for entry in found if all(entry[key] == value for key, value in where.items())]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which two policies learn, each in a seat of its own."""
    return asyncio.run(
        played(tmp_path_factory.mktemp("both") / "run", *BOTH, "--checkpoints.every", "1", "--checkpoints.keep", "9")
    )


async def test_both_adapters_move_by_rewards_of_their_own(both: Path):
    for policy in ("x", "o"):
        assert not equal(state(both, policy, 0), state(both, policy, 2))
    for step in records(both / "metrics.jsonl", kind="step"):
        norms = [step[f"policy/{policy}/grad_norm"] for policy in ("x", "o")]
        assert min(norms) > 0
        assert norms[0] != norms[1]


@pytest.mark.parametrize(("zeroed", "other"), [("o", "x"), ("x", "o")])
async def test_an_adapter_whose_seat_earns_nothing_does_not_move_a_bit(
    both: Path, tmp_path: Path, zeroed: str, other: str
):
    root = await played(
        tmp_path / "run",
        *BOTH,
        "--environment.options.zeroed",
        zeroed,
        "--checkpoints.every",
        "1",
        "--checkpoints.keep",
        "9",
    )
    before, after = state(root, zeroed, 0), state(root, zeroed, 2)
    assert equal(before, after)
    assert not any(name.startswith("optimizer/") for name in after)  # moments begin with the first step
    assert equal(before, state(both, zeroed, 0))
    # the other one's first update is made of the same rollouts, to the last bit; later ones meet another opponent
    assert equal(state(root, other, 1), state(both, other, 1))
    assert not equal(state(root, other, 2), state(root, other, 1))
    assert records(root / "metrics.jsonl", kind="step")[0][f"policy/{zeroed}/groups_flat"] == 2


async def test_a_policys_update_does_not_depend_on_who_else_learns(both: Path, tmp_path: Path):  # A3
    root = await played(
        tmp_path / "run",
        *BOTH,
        "--policies.o.learning-rate",
        "1e-30",
        "--checkpoints.every",
        "1",
        "--checkpoints.keep",
        "9",
    )
    assert equal(state(root, "x", 1), state(both, "x", 1))


async def test_settings_of_one_policy_are_its_own(tmp_path: Path):
    root = await played(tmp_path / "run", *BOTH, "--policies.o.learning-rate", "1e-4", "--trainer.steps", "1")
    (step,) = records(root / "metrics.jsonl", kind="step")
    assert (step["policy/x/learning_rate"], step["policy/o/learning_rate"]) == (5e-3, 1e-4)
    ranks = {policy: {min(w.shape) for n, w in state(root, policy, 0).items() if "lora_" in n} for policy in ("x", "o")}
    assert ranks == {"x": {4}, "o": {2}}


async def test_metrics_are_of_each_policy_and_transcripts_name_it(both: Path):
    step = records(both / "metrics.jsonl", kind="step")[0]
    episodes = records(both / "rollouts.jsonl", step=1)
    for policy in ("x", "o"):
        seats = [seat for episode in episodes for seat in episode["seats"] if seat["seat"] == policy]
        assert {seat["policy"] for seat in seats} == {policy}
        assert step[f"policy/{policy}/reward"] == pytest.approx(sum(seat["reward"] for seat in seats) / len(seats))
        assert step[f"reward/{policy}"] == step[f"policy/{policy}/reward"]
        assert step[f"policy/{policy}/groups"] == 2
        shares = [step[f"policy/{policy}/{name}"] for name in ("win", "draw", "loss")]
        assert sum(shares) == pytest.approx(1)
    assert step["policy/x/win"] == step["loss/o"]
    assert step["groups"] == 4
    assert step["grad_norm"] == max(step["policy/x/grad_norm"], step["policy/o/grad_norm"])


async def test_transcripts_hold_the_advantage_of_every_sampled_token(both: Path):
    groups: dict[tuple[str, str], list[float]] = {}
    for episode in records(both / "rollouts.jsonl", step=1):
        for seat in episode["seats"]:
            rows = [turn["advantages"] for turn in seat["turns"]]
            assert [len(row) for row in rows] == [len(turn["logprobs"]) for turn in seat["turns"]]
            (own,) = {value for row in rows for value in row} or {0.0}  # GRPO: one for the whole trajectory
            groups.setdefault((episode["id"].rpartition("-")[0], seat["seat"]), []).append(own)
    assert any(any(own) for own in groups.values())
    for own in groups.values():
        assert sum(own) == pytest.approx(0, abs=1e-4)


async def test_a_frozen_opponent_is_logged_and_neither_trained_nor_counted(tmp_path: Path):  # G3
    root = await played(tmp_path / "run", "--seats.o.player", "snapshot")
    step = records(root / "metrics.jsonl", kind="step")[-1]
    episodes = records(root / "rollouts.jsonl", step=2)
    seats = {seat["seat"]: seat for seat in episodes[0]["seats"]}
    assert (seats["x"]["trainable"], seats["o"]["trainable"]) == (True, False)
    assert {turn["advantages"] is None for turn in seats["o"]["turns"]} == {True}
    assert seats["o"]["turns"][0]["snapshot"].endswith("000001")
    assert seats["x"]["turns"][0]["snapshot"].endswith("000002")
    learned = [seat for episode in episodes for seat in episode["seats"] if seat["seat"] == "x"]
    assert step["action_tokens"] == sum(seat["action_tokens"] for seat in learned)
    assert step["reward"] == pytest.approx(sum(seat["reward"] for seat in learned) / len(learned))
    assert step["groups"] == 2
    assert "win/o" not in step


async def test_players_that_rotate_play_every_side(tmp_path: Path):
    root = await played(tmp_path / "run", *SCRIPT, "--rollouts.rotate-seats", "true", "--trainer.steps", "1")
    lined_up = {tuple(seat["policy"] for seat in episode["seats"]) for episode in records(root / "rollouts.jsonl")}
    assert lined_up == {("policy", None), (None, "policy")}
    tasks = {(episode["task"], episode["seats"][0]["policy"]) for episode in records(root / "rollouts.jsonl")}
    assert len(tasks) == 2  # all episodes of a group have one line-up


async def test_evaluations_have_players_of_their_own_and_say_who_they_are(tmp_path: Path):
    own = ["--evaluation.seats.o.player", "script", "--evaluation.seats.o.function", "highest"]
    root = await played(tmp_path / "run", *BOTH, *own, "--trainer.steps", "1")
    for record in records(root / "metrics.jsonl", kind="evaluation"):
        assert record["players"] == {"x": "policy x", "o": "script highest"}
        assert record["win/x"] == 0.0
        assert record["win/x"] + record["draw/x"] + record["loss/x"] == 1.0
        assert record["policy/x/reward"] == record["reward"] <= 0


async def test_a_snapshot_of_another_run_plays_from_a_copy_of_its_own(both: Path, tmp_path: Path):
    store = ["--seats.o.player", "snapshot", "--seats.o.store", str(both / "policies"), "--seats.o.policy", "o"]
    root = await played(tmp_path / "run", *store, "--trainer.steps", "1")
    seat = records(root / "rollouts.jsonl", step=1)[0]["seats"][1]
    assert (seat["policy"], seat["trainable"]) == ("frozen.1", False)
    copies = [
        root / "policies" / "frozen.1" / "sampler_weights" / "000001",
        both / "policies" / "o" / "sampler_weights",
    ]
    newest = max(path for path in copies[1].iterdir() if path.name.isdecimal())
    assert equal(*(load_file(folder / "adapter_model.safetensors") for folder in (copies[0], newest)))


async def test_a_run_goes_on_without_the_store_that_it_copied_a_snapshot_from(both: Path, tmp_path: Path):
    store = shutil.copytree(both / "policies", tmp_path / "store")
    frozen = ["--seats.o.player", "snapshot", "--seats.o.store", str(store), "--seats.o.policy", "o"]
    root = await played(tmp_path / "run", *frozen, "--trainer.steps", "1")
    shutil.rmtree(store)
    await run_job(RunFolder(root).load_config(("--trainer.steps", "2")), RunFolder(root), Silent())
    assert records(root / "rollouts.jsonl", step=2)[0]["seats"][1]["policy"] == "frozen.1"


async def test_a_policy_that_plays_no_seat_of_evaluations_has_no_numbers_there(both: Path, tmp_path: Path):
    own = ["--evaluation.seats.o.player", "script", "--evaluation.seats.o.function", "highest"]
    root = await played(tmp_path / "run", *BOTH, *own, "--trainer.steps", "0")
    (record,) = records(root / "metrics.jsonl", kind="evaluation")
    assert "policy/x/reward" in record
    assert not [name for name in record if name.startswith("policy/o/")]


async def test_an_evaluation_has_what_its_environment_reports_of_the_episodes(both: Path):
    evaluation, step = (records(both / "metrics.jsonl", kind=kind)[-1] for kind in ("evaluation", "step"))
    assert 0 <= evaluation["env/letter"] <= 1
    assert evaluation.keys() >= {name for name in step if name.startswith("env/")}


async def test_an_evaluation_in_which_nobody_learns_has_the_rewards_of_all(tmp_path: Path):
    frozen = [f"--evaluation.seats.{seat}.{key}" for seat in "xo" for key in ("player", "function")]
    own = [part for pair in zip(frozen, ["script", "highest"] * 2, strict=True) for part in pair]
    shared = ["--environment.options.shared", "true", "--trainer.steps", "0"]
    root = await played(tmp_path / "run", *own, *shared)
    (record,) = records(root / "metrics.jsonl", kind="evaluation")
    assert record["reward"] == 2.0


async def test_a_run_that_is_evaluated_against_others_says_that_its_numbers_do_not_compare(tmp_path: Path):
    root = await played(tmp_path / "run", *SCRIPT, "--trainer.steps", "0")
    other = ("--evaluation.seats.o.player", "demonstration")
    notes: list[str] = []
    for overrides in ((), other):
        observer = Silent()
        observer.note = notes.append
        await run_job(RunFolder(root).load_config(overrides), RunFolder(root), observer)
        assert bool(notes) == bool(overrides)
    (note,) = notes
    assert "was played by others (x policy policy, o script drawn): its numbers don't compare" in note


async def test_a_script_has_the_episodes_own_luck_and_its_options(tmp_path: Path):
    config = [*SCRIPT, "--seats.o.options.among", "pqrs", "--trainer.steps", "1"]
    texts = [
        [seat["seats"][1]["turns"][0]["text"] for seat in records(root / "rollouts.jsonl")]
        for root in [await played(tmp_path / name, *config) for name in ("one", "two")]
    ]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) > 1
    assert set(texts[0]) <= set("pqrs")


async def test_every_policy_is_warmed_up_on_the_demonstrations_of_its_seat(tmp_path: Path):
    warm = ["--warmup.method", "lora", "--warmup.steps", "8", "--warmup.episodes-per-step", "4"]
    root = await played(tmp_path / "run", *BOTH, *warm, "--trainer.steps", "0", "--warmup.learning-rate", "1e-1")
    (before, *_) = records(root / "metrics.jsonl", kind="evaluation")
    assert before["reward"] == 0
    assert before["reward/o"] == pytest.approx(0.1)  # it says 2 where the other one says 1


async def test_a_run_goes_on_only_with_the_policies_that_it_began_with(tmp_path: Path):
    root = await played(tmp_path / "run", "--policies.x.rank", "4", "--trainer.steps", "1")
    folder = RunFolder(root)
    config = folder.load_config(("--policies.y.rank", "4", "--seats.o.policy", "y", "--trainer.steps", "2"))
    with pytest.raises(ConfigError, match="the run's policies are x, and the configuration's x, y"):
        await run_job(config, folder, Silent())
