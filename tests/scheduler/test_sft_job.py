"""A supervised job: what it trains on, what it keeps, what it refuses."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from tests.scheduler.sft_material import Recorder, config, rows, write

from tinker_actors.algorithms.chat_datums import chat_datums
from tinker_actors.data.chat_rows import read_chat_row
from tinker_actors.errors import ConfigError, DataError
from tinker_actors.models import Renderer, load_tokenizer
from tinker_actors.policies import PolicySpec, SnapshotStore
from tinker_actors.scheduler import Phase, RunFolder, SftConfig, SftSummary, check_job, load_config, run_job
from tinker_actors.training import AdamParams, LossConfig
from tinker_actors.training.engine import TrainingEngine


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def run(made: SftConfig) -> tuple[SftSummary, Recorder, RunFolder]:
    observer, folder = Recorder(), RunFolder.create(made)
    summary = await run_job(made, folder, observer)
    assert isinstance(summary, SftSummary)
    return summary, observer, folder


async def test_a_run_trains_evaluates_and_keeps_what_it_should(tmp_path: Path):
    made = config(tmp_path, "--trainer.epochs", "3")
    summary, observer, folder = await run(made)
    assert observer.phases[:4] == [Phase.START, Phase.DATA, Phase.EVALUATION, Phase.SAVE]
    assert observer.phases[-1] is Phase.END
    assert observer.planned == summary.steps == 12  # four batches an epoch, the last one of two examples
    assert [step for step, _ in observer.evaluations] == [0, 3, 6, 9, 12]
    assert [observer.steps[step]["examples"] for step in (1, 2, 3, 4)] == [4, 4, 4, 2]
    assert observer.steps[4]["epoch"] == 1.0
    assert summary.eval_after is not None
    assert summary.eval_before is not None
    assert summary.eval_after < 0.8 * summary.eval_before
    assert summary.examples == 42
    losses = [entry["loss"] for entry in records(folder.metrics) if entry["kind"] == "evaluation"]
    assert losses == [loss for _, loss in observer.evaluations]
    assert folder.loss_plot.stat().st_size > 5_000
    assert json.loads(folder.summary.read_text())["eval_best"] == min(losses)
    assert not folder.skipped.exists()


async def test_each_example_is_trained_once_an_epoch_in_another_order(tmp_path: Path):  # R4
    _, _, folder = await run(config(tmp_path, "--trainer.epochs", "2"))
    trained = records(folder.examples)
    epochs = [[name for entry in trained if entry["epoch"] == epoch for name in entry["examples"]] for epoch in (1, 2)]
    names = sorted(f"{tmp_path / 'train.jsonl'}:{line}" for line in range(1, 15))
    assert sorted(epochs[0]) == sorted(epochs[1]) == names
    assert epochs[0] != epochs[1]


async def test_the_first_step_is_one_adam_step_on_the_mean_over_all_its_tokens(tmp_path: Path):
    overrides = ("--data.shuffle", "false", "--trainer.steps", "1", "--trainer.schedule", "constant")
    _, observer, _ = await run(config(tmp_path, *overrides, "--batch.accumulation", "2"))
    engine = TrainingEngine("tiny-llama", tmp_path / "other")
    engine.create(PolicySpec(base_model="tiny-llama", rank=4, name="p"))
    renderer = Renderer(load_tokenizer("tiny-llama"))
    datums = [datum for row in rows(8) for datum in chat_datums(read_chat_row(row), renderer)]
    plain = engine.forward_backward("p", datums, LossConfig(name="cross_entropy"))
    tokens = sum(sum(datum.weights or ()) for datum in datums)
    assert observer.steps[1]["loss"] == pytest.approx(plain.loss / tokens, rel=1e-6)
    assert observer.steps[1]["tokens"] == tokens
    norm = engine.optim_step("p", AdamParams(learning_rate=1e-2)).grad_norm
    assert observer.steps[1]["grad_norm"] == pytest.approx(norm / tokens, rel=1e-5)


async def test_weighting_by_examples_differs_from_weighting_by_tokens(tmp_path: Path):
    norms: list[float] = []
    for aggregation in ("token_mean", "sequence_mean"):
        (place := tmp_path / aggregation).mkdir()
        made = config(place, "--trainer.steps", "1", "--trainer.aggregation", aggregation, train=14)
        norms.append((await run(made))[1].steps[1]["grad_norm"])
    assert norms[0] != pytest.approx(norms[1], rel=1e-3)


async def test_the_division_into_batches_changes_a_step_only_by_rounding(tmp_path: Path):
    results: list[tuple[float, float]] = []
    for name, batch in {"whole": ("8", "1"), "parts": ("2", "4")}.items():
        (place := tmp_path / name).mkdir()
        overrides = ("--batch.examples", batch[0], "--batch.accumulation", batch[1], "--trainer.steps", "2")
        step = (await run(config(place, *overrides)))[1].steps[2]
        results.append((step["loss"], step["grad_norm"]))
    assert results[0] == pytest.approx(results[1], rel=1e-4)


async def test_the_best_state_outlives_later_ones(tmp_path: Path):
    # so high a rate that the loss rises after a while
    overrides = ("--trainer.epochs", "6", "--evaluation.every", "2", "--checkpoints.keep", "1")
    rate = ("--trainer.learning-rate", "0.15", "--trainer.schedule", "constant", "--checkpoints.keep-snapshots", "1")
    summary, observer, folder = await run(config(tmp_path, *overrides, *rate))
    best_step, best = min(observer.evaluations, key=lambda entry: entry[1])
    assert 0 < best_step < summary.steps, "the rate is meant to spoil the policy after its best step"
    assert summary.eval_best == best
    store = SnapshotStore(folder.policies)
    assert [entry.step for entry in store.list("policy", "weights")] == [best_step, summary.steps]
    assert [entry.step for entry in store.list("policy")] == [best_step, summary.steps]
    assert summary.best is not None
    assert store.get(summary.best).step == best_step


async def test_a_full_policy_is_trained_too(tmp_path: Path):
    overrides = ("--policy.kind", "full", "--policy.rank", "16", "--trainer.learning-rate", "2e-3")
    summary, _, folder = await run(config(tmp_path, *overrides))
    assert SnapshotStore(folder.policies).latest("policy").kind == "full"
    assert summary.eval_after is not None
    assert summary.eval_before is not None
    assert summary.eval_after < summary.eval_before - 0.3


@pytest.mark.parametrize("optimizer", ["adamw_8bit", "muon"])
async def test_every_optimizer_learns_and_takes_steps_of_its_own(tmp_path: Path, optimizer: str):
    full = ("--policy.kind", "full", "--policy.rank", "16", "--trainer.learning-rate", "2e-3")
    own, _, folder = await run(config(tmp_path, *full, "--trainer.optimizer", optimizer))
    state = next((folder.policies / "policy" / "weights").glob("*/state.json"))
    assert json.loads(state.read_text())["optimizer"] == optimizer
    assert own.eval_after is not None
    assert own.eval_before is not None
    assert own.eval_after < own.eval_before - 0.3


async def test_training_ends_once_the_loss_is_low_enough(tmp_path: Path):
    summary, observer, _ = await run(config(tmp_path, "--trainer.epochs", "9", "--evaluation.stop-at", "4.5"))
    assert summary.steps < observer.planned
    assert summary.eval_after is not None
    assert summary.eval_after <= 4.5


def spoil(folder: Path) -> None:
    good = rows(6)
    silent = {"messages": [{"role": "user", "content": "hello?"}]}
    write(folder / "train.jsonl", [good[0], '{"messages": [}', *good[1:3], silent, "", good[3], good[4], good[5]])


async def test_bad_lines_end_the_run_with_their_numbers_before_anything_is_trained(tmp_path: Path):
    made = config(tmp_path)
    spoil(tmp_path)
    with pytest.raises(DataError) as caught:
        await run(made)
    text = str(caught.value)
    assert f"{tmp_path / 'train.jsonl'}:2: not valid JSON: Expecting value at column 15; " in text
    assert f"{tmp_path / 'train.jsonl'}:5: there is no assistant message to learn; the roles are: user" in text
    assert "\n" not in text
    assert not (tmp_path / "run" / "policies").exists()


async def test_a_line_whose_text_no_tokenizer_takes_is_a_bad_one(tmp_path: Path):
    made = config(tmp_path)
    write(tmp_path / "train.jsonl", [*rows(2), {"prompt": "a \ud83d", "completion": "b"}])
    with pytest.raises(DataError, match=r"train\.jsonl:3: .*'\\ud83d', half of a surrogate pair"):
        await run(made)


async def test_bad_and_long_lines_are_left_out_counted_and_listed_on_request(tmp_path: Path):
    overrides = ("--data.on-bad-line", "skip", "--data.too-long", "drop", "--data.max-length", "30")
    made = config(tmp_path, *overrides, held=0)
    spoil(tmp_path)
    long = {"prompt": "x" * 40, "completion": "y"}
    with (tmp_path / "train.jsonl").open("a") as file:
        file.write(json.dumps(long) + "\n")
    summary, observer, folder = await run(made)
    listed = [(entry["where"].rpartition(":")[2], entry["kind"]) for entry in records(folder.skipped)]
    assert listed == [("2", "bad"), ("5", "bad"), ("10", "too_long")]
    assert (summary.skipped, summary.examples) == (3, 6)
    assert "3 lines are left out" in observer.notes[0]
    assert summary.eval_after is None


async def test_a_held_out_share_is_never_trained_on(tmp_path: Path):
    summary, _, folder = await run(config(tmp_path, "--data.holdout", "0.25", held=0, train=12))
    assert summary.examples == 9
    (evaluation, *_) = [entry for entry in records(folder.metrics) if entry["kind"] == "evaluation"]
    assert evaluation["examples"] == 3
    assert math.isfinite(evaluation["loss"])


async def test_data_without_a_usable_line_is_refused(tmp_path: Path):
    made = config(tmp_path, "--data.on-bad-line", "skip")
    write(tmp_path / "train.jsonl", ["{}"])
    with pytest.raises(DataError, match=r"no line of .*train\.jsonl can be used; .*:1: neither messages nor prompt"):
        await run(made)


async def test_other_data_than_before_is_refused_when_a_run_goes_on(tmp_path: Path):
    made = config(tmp_path, "--trainer.steps", "2")
    _, _, folder = await run(made)
    write(tmp_path / "train.jsonl", rows(13))
    with pytest.raises(ConfigError, match=r"train\.jsonl gives other examples than those"):
        await run_job(folder.load_config(("--trainer.steps", "4")), folder, Recorder())


async def test_a_longer_run_goes_on_where_the_data_was_left(tmp_path: Path):
    made = config(tmp_path, "--trainer.epochs", "2", "--trainer.steps", "3")
    _, _, folder = await run(made)
    await run_job(folder.load_config(("--trainer.steps", "99", "--batch.examples", "5")), folder, Recorder())
    names = [name for entry in records(folder.examples) for name in entry["examples"]]
    assert sorted(names[:14]) == sorted(names[14:])
    assert len(set(names)) == 14


def test_what_can_not_work_is_refused_when_it_is_read(tmp_path: Path):
    train = ("--job", "sft", "--data.train", str(tmp_path / "gone.jsonl"))
    for overrides, message in {
        ("--job", "sft"): "data is missing",
        ("--data.train", "x"): 'unknown key data; that is a key of job = "sft"',
        ("--job", "dance"): "job is 'dance'; one of rl, sft",
        (*train, "--rollouts.workers", "2"): "unknown key rollouts",
        (*train, "--data.trian", "x"): "unknown key data.trian; did you mean data.train",
        (*train, "--batch.examples", "2", "--batch.tokens", "9"): "a batch is bounded by one of them",
        (*train, "--data.holdout", "0.1", "--data.evaluation", "x"): "evaluation names data of its own",
        (*train, "--evaluation.stop-at", "1"): "there is nothing to evaluate on",
        (*train, "--data.train", "[]"): "data.train names nothing",
        (*train, "--trainer.optimizer", "muon"): "trainer.optimizer is 'muon', but policy.kind 'lora'",
        (*train, "--trainer.momentum", "0.5"): "trainer.momentum is 0.5, but optimizer 'adamw' has none",
        (*train, "--policy.value-head", "true"): "policy.value_head is true, but only RL",
        (*train, "--kl.coefficient", "1"): 'unknown key kl; that is a key of job = "rl"',
    }.items():
        with pytest.raises(ConfigError) as caught:
            load_config(None, overrides)
        assert message in str(caught.value)
    with pytest.raises(ConfigError, match=r"gone\.jsonl: no such file"):
        check_job(load_config(None, train))
