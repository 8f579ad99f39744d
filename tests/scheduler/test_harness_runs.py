"""A run whose seat is played by a harness: what was sampled for it trains the policy, the same in every run."""

from pathlib import Path

import pytest
from silent_observer import Silent

from tinker_actors.policies import SnapshotStore
from tinker_actors.scheduler import RunFolder, load_config, run_job

HARNESS = Path(__file__).parents[1] / "rollouts/harness_seat.py"
SMALL = [
    *("--environment.name", "number_guess", "--seats.agent.player", "endpoint"),
    *("--seats.agent.harness", f"{HARNESS}:play", "--seats.agent.options.extra", "1"),
    *("--warmup.method", "full", "--warmup.steps", "5", "--warmup.episodes-per-step", "16"),
    *("--rollouts.tasks-per-step", "2", "--rollouts.group-size", "4"),
    *("--rollouts.workers", "0", "--rollouts.max-tokens", "2", "--trainer.steps", "1", "--trainer.threads", "1"),
    *("--kl.coefficient", "0.1", "--algorithm.entropy-coefficient", "0.1"),
    *("--evaluation.episodes", "2", "--evaluation.every", "0"),
]


async def played(folder: Path) -> tuple[dict[str, float], list[bytes]]:
    config, observer = load_config(None, [*SMALL, "--output", str(folder)]), Silent()
    await run_job(config, RunFolder.create(config), observer)
    store = SnapshotStore(folder / "policies")
    snapshots = sorted((Path(store.root) / "policy/sampler_weights").glob("[0-9]*"))
    return dict(observer.steps[0]), [(path / "adapter_model.safetensors").read_bytes() for path in snapshots]


@pytest.mark.slow
async def test_a_harness_trains_its_policy_and_a_run_of_it_is_repeated_bit_for_bit(tmp_path: Path):
    step, snapshots = await played(tmp_path / "one")
    assert step["failed"] == 0
    assert step["env/harness_calls"] == step["turns"] > 1
    assert step["env/harness_restarts"] > 0
    assert snapshots[0] != snapshots[-1]
    assert (await played(tmp_path / "other"))[1] == snapshots
