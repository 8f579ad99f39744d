"""Whole runs that sample by another engine."""

import contextlib

from sampling_harness import BASE
from vllm_stand_in import StandIn, serving

from tinker_actors.models import load_base
from tinker_actors.scheduler import RunFolder, load_config, run_job
from tinker_actors.telemetry import read_jsonl

SMALL = [
    *("--environment.name", "number_guess", "--rollouts.tasks-per-step", "1", "--rollouts.group-size", "2"),
    *("--rollouts.max-tokens", "2", "--rollouts.workers", "0", "--trainer.steps", "2", "--trainer.threads", "1"),
    *("--evaluation.episodes", "2", "--evaluation.every", "0", "--trainer.learning-rate", "0.05"),
    *("--algorithm.entropy-coefficient", "0.1", "--policy.rank", "4"),  # a gradient, whatever the rewards
]


class Silent:
    def __getattr__(self, name):
        return lambda *_: None


async def test_each_step_of_a_run_is_sampled_by_its_own_snapshot_at_the_server(tmp_path):
    stand_in = StandIn(load_base(BASE).skeleton(), context_length=512)
    async with contextlib.AsyncExitStack() as stack:
        url = await stack.enter_async_context(serving(stand_in))
        overrides = ["--output", str(tmp_path / "run"), "--sampler.backend", "vllm", "--sampler.vllm.url", url]
        config = load_config(None, [*SMALL, *overrides])
        folder = RunFolder.create(config)
        summary = await run_job(config, folder, Silent())
        await stand_in.until(lambda: not stand_in.adapters)
    assert summary.steps == 2
    steps = [record for record in read_jsonl(folder.metrics) if record["kind"] == "step"]
    assert all(record["failed"] == 0 for record in steps)
    assert all(record["grad_norm"] > 0 for record in steps)
    # what sampled and what trains agree, step after step
    assert max(record["kl"] for record in steps) < 1e-8
    assert len({body["model"] for body in stand_in.bodies} - {"base"}) == 3
