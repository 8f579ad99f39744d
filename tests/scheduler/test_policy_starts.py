"""Runs whose policies begin with what an earlier run left, supervised or not."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tests.scheduler.sft_material import settings
from tests.scheduler.silent_observer import Silent

from tinker_actors.errors import ConfigError
from tinker_actors.policies import SnapshotStore
from tinker_actors.scheduler import RunFolder, check_job, load_config, run_job

GAME = f"{Path(__file__).with_name('letters_game.py')}"
RL = [
    *("--environment.name", GAME, "--rollouts.tasks-per-step", "2", "--rollouts.group-size", "4"),
    *("--rollouts.max-tokens", "2", "--rollouts.workers", "0", "--trainer.threads", "1"),
    *("--trainer.learning-rate", "5e-3", "--evaluation.episodes", "2", "--evaluation.every", "0"),
]
SFT_HANDLE = "tinker://policy/sampler_weights/000002"


async def run(root: Path, overrides: list[str]) -> Path:
    config = load_config(None, [*overrides, "--output", str(root)])
    check_job(config)
    await run_job(config, RunFolder.create(config), Silent())
    return root


def adapter(store: Path, policy: str, number: str) -> dict[str, bytes]:
    weights = load_file(store / policy / "sampler_weights" / number / "adapter_model.safetensors")
    return {name: tensor.numpy().tobytes() for name, tensor in weights.items()}


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of a supervised run of two steps."""
    folder = tmp_path_factory.mktemp("taught")
    steps = ["--trainer.steps", "2", "--checkpoints.keep-snapshots", "9"]
    return asyncio.run(run(folder / "run", settings(folder, *steps, held=0))) / "policies"


async def test_rl_begins_with_the_adapter_that_supervised_training_left(taught: Path, tmp_path: Path):
    start = ["--policy.rank", "4", "--policy.start-store", str(taught), "--trainer.steps", "1"]
    root = await run(tmp_path / "run", [*RL, *start])
    store = SnapshotStore(root / "policies")
    last = SnapshotStore(taught).latest("policy")
    assert store.manifest("tinker://policy/sampler_weights/000001").parent == last.handle
    first, second = (adapter(root / "policies", "policy", number) for number in ("000001", "000002"))
    assert first == adapter(taught, "policy", last.handle[-6:])
    assert first != second


async def test_such_a_run_goes_on_when_what_it_began_with_is_gone(taught: Path, tmp_path: Path):
    copy = shutil.copytree(taught, tmp_path / "copy")
    start = ["--policy.rank", "4", "--policy.start-store", str(copy)]
    root = await run(tmp_path / "run", [*RL, *start, "--trainer.steps", "1"])
    shutil.rmtree(copy)
    config = RunFolder(root).load_config(("--trainer.steps", "2"))
    check_job(config, RunFolder(root))
    await run_job(config, RunFolder(root), Silent())
    assert json.loads((root / "summary.json").read_text())["steps"] == 2


async def test_each_of_several_policies_begins_with_a_snapshot_of_its_own(taught: Path, tmp_path: Path):
    tables = [
        *("--policy.rank", "4", "--policies.x.start-store", str(taught), "--policies.x.start", SFT_HANDLE),
        *("--policies.o.rank", "4", "--trainer.steps", "0"),
    ]
    root = await run(tmp_path / "run", [*RL, *tables])
    assert adapter(root / "policies", "x", "000001") == adapter(taught, "policy", "000002")
    assert SnapshotStore(root / "policies").manifest("tinker://o/sampler_weights/000001").parent is None


async def test_supervised_training_goes_on_from_a_snapshot_as_a_new_run(taught: Path, tmp_path: Path):
    start = ["--policy.start-store", str(taught), "--trainer.steps", "1", "--checkpoints.keep-snapshots", "9"]
    root = await run(tmp_path / "run", settings(tmp_path, *start, held=0))
    newest = SnapshotStore(taught).latest("policy")
    assert adapter(root / "policies", "policy", "000001") == adapter(taught, "policy", newest.handle[-6:])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("--policy.rank", "8"), r"policy\.rank 8, but tinker://policy/\S+, .* has rank 4; those are needed"),
        (("--policy.kind", "full"), r"policy\.kind 'full', but .* has kind 'lora'"),
        (("--policy.rank", "4", "--model.name", "tiny-qwen3"), r"the base model 'tiny-llama', and model\.name is"),
        (("--policy.rank", "4", "--policy.start", "tinker://policy/sampler_weights/000099"), r"000099 is not in the"),
        (("--policies.x.rank", "4", "--policies.o.rank", "3"), r"policies\.o: policy\.rank 3, but "),
    ],
)
def test_a_start_that_cannot_be_is_refused_before_anything_is_written(
    taught: Path, tmp_path: Path, overrides: tuple[str, ...], message: str
):
    config = load_config(None, [*RL, "--policy.start-store", str(taught), "--output", str(tmp_path / "r"), *overrides])
    with pytest.raises(ConfigError, match=message):
        check_job(config)


def test_the_folder_of_a_run_in_the_place_of_its_store_is_refused_with_where_that_is(taught: Path):
    run, said = taught.parent, rf"; the store of that run is {taught}$"
    for keys in (["--policy.start-store", str(run)], ["--seats.o.player", "snapshot", "--seats.o.store", str(run)]):
        with pytest.raises(ConfigError, match=said):
            check_job(load_config(None, [*RL, "--policy.rank", "4", *keys]))


def test_a_store_of_several_policies_needs_a_handle(taught: Path, tmp_path: Path):
    store = shutil.copytree(taught, tmp_path / "store")
    shutil.copytree(store / "policy", store / "other")
    config = load_config(None, [*RL, "--policy.rank", "4", "--policy.start-store", str(store)])
    with pytest.raises(ConfigError, match=r"policy\.start can't be used: .* snapshots of other, policy; name the pol"):
        check_job(config)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("--policy.start", "latest"), r"start is 'latest', but no start_store is given"),
        (("--policy.start", "best", "--policy.start-store", "s"), r"start is no 'latest' or handle of a snapshot"),
        (("--policy.start-store", "s", "--warmup.method", "full"), r"makes a base model that its snapshots don't"),
    ],
)
def test_keys_that_say_no_start_are_refused(overrides: tuple[str, ...], message: str):
    with pytest.raises(ConfigError, match=message):
        load_config(None, [*RL, *overrides])
