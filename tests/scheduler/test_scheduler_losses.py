"""A run's loss and its pull towards a reference: from the configuration to the updates."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.scheduler.silent_observer import Silent

from tinker_actors.errors import ConfigError, UnknownPolicyError
from tinker_actors.scheduler import RunConfig, RunFolder, load_config, run_job
from tinker_actors.training import LOSS_DEFAULTS

SMALL = [
    *("--warmup.method", "lora", "--warmup.steps", "1", "--warmup.episodes-per-step", "4"),
    *("--rollouts.tasks-per-step", "2", "--rollouts.group-size", "4", "--rollouts.max-tokens", "2"),
    *("--rollouts.workers", "0", "--trainer.steps", "2", "--trainer.threads", "1", "--trainer.learning-rate", "0.01"),
    *("--evaluation.episodes", "2", "--evaluation.every", "0", "--checkpoints.keep", "1", "--checkpoints.every", "1"),
]


@pytest.fixture
def config(tmp_path: Path):
    environment = tmp_path / "chance.py"
    environment.write_text(
        "from tinker_actors import Environment, Step\n"
        "class Chance(Environment):\n"
        "    def reset(self, seed): return 'go'\n"
        "    def __init__(self, flat=False): self.flat = flat\n"
        "    def step(self, action):\n"
        "        reward = 1.0 if self.flat else self.rng.random()\n"
        "        return Step(observation='', reward=reward, terminated=True)\n"
        "    def demonstrate(self): return 'a'\n"
    )

    def make(*overrides: str) -> RunConfig:
        place = ("--environment.name", str(environment), "--output", str(tmp_path / "run"))
        return load_config(None, [*SMALL, *place, *overrides])

    return make


async def play(config: RunConfig, *, again: bool = False) -> list[Mapping[str, float]]:
    """The metrics of the steps of a new run, or of those that an earlier one goes on with."""
    observer = Silent()
    folder = RunFolder(Path(config.output or "")) if again else RunFolder.create(config)
    await run_job(config, folder, observer)  # type: ignore[arg-type]
    return observer.steps


def test_every_rl_loss_can_be_configured_with_its_settings(config):
    for name in sorted(set(LOSS_DEFAULTS) - {"cross_entropy"}):
        settings = [word for key, value in LOSS_DEFAULTS[name].items() for word in (f"--algorithm.{key}", str(value))]
        loss = config("--algorithm.loss", name, *settings).loss_config()
        assert loss == config("--algorithm.loss", name).loss_config()
        assert {key: getattr(loss, key) for key in LOSS_DEFAULTS[name]} == LOSS_DEFAULTS[name]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--algorithm.loss", "dro", "--algorithm.clip-high", "1.2"],
            "algorithm.clip_high is 1.2, but dro has no such",
        ),
        (["--algorithm.clip-low", "1.2"], "algorithm.clip_low is 1.2 and clip_high is 1.2; 0 <= clip_low <= 1"),
        (["--algorithm.loss", "cross_entropy"], "algorithm.loss is 'cross_entropy'"),
        (["--kl.reference", "first"], "kl.reference is 'first'; 'initial', 'base' or the handle of a checkpoint"),
        (["--kl.reference", "tinker://a/sampler_weights/000001"], "weights is needed here"),
        (["--kl.estimator", "k4"], "kl.estimator is 'k4'"),
    ],
)
def test_a_loss_that_can_not_work_is_refused_in_one_line(config, arguments: list[str], message: str):
    with pytest.raises(ConfigError) as caught:
        config(*arguments)
    assert message in str(caught.value)


@pytest.mark.parametrize("where", ["loss", "reward"])
async def test_the_kl_to_the_initial_policy_starts_at_0_and_grows(config, where: str):
    first, second = await play(config("--kl.coefficient", "0.1", "--kl.where", where, "--kl.estimator", "k2"))
    assert first["kl_reference"] == pytest.approx(0.0, abs=1e-9)
    assert second["kl_reference"] > 1e-6
    assert ("train_kl_reference" in second) == (where == "loss")


@pytest.mark.parametrize("where", ["loss", "reward"])
async def test_the_base_as_reference_pulls_on_a_policy_that_was_warmed_up(config, where: str):
    pull = ("--kl.coefficient", "0.1", "--kl.reference", "base", "--kl.where", where)
    first, _ = await play(config(*pull, "--environment.options.flat", "true"))
    assert first["kl_reference"] > 1e-6
    assert first["grad_norm"] > 0  # the rewards are all equal: nothing else has a gradient


async def test_a_penalty_trains_on_episodes_without_signal_too(config):
    flat = ("--environment.options.flat", "true")
    first, _ = await play(config("--algorithm.entropy-coefficient", "0.01", *flat))
    assert first["groups_flat"] == first["groups"]
    assert first["train_tokens"] == first["action_tokens"]
    assert first["grad_norm"] > 0


async def test_a_resumed_run_keeps_the_reference_that_it_began_with(config):
    chosen = ("--kl.coefficient", "0.1", "--kl.estimator", "k2")
    await play(config(*chosen))
    (third,) = await play(config(*chosen, "--trainer.steps", "3"), again=True)
    assert third["kl_reference"] > 1e-6


async def test_a_run_that_had_no_reference_can_not_be_resumed_with_one(config):
    await play(config())
    with pytest.raises(UnknownPolicyError, match="reference"):
        await play(config("--kl.coefficient", "0.1", "--trainer.steps", "3"), again=True)


async def test_a_reference_that_no_store_has_is_a_fault_of_the_configuration(config):
    gone = ("--kl.coefficient", "0.1", "--kl.reference", "tinker://p/weights/gone")
    with pytest.raises(
        ConfigError, match=r"kl\.reference can't be used: tinker://p/weights/gone .*kl\.reference_store"
    ):
        await play(config(*gone))


async def test_the_reference_may_be_a_checkpoint_of_another_run(config, tmp_path: Path):
    await play(config("--output", str(tmp_path / "first"), "--checkpoints.keep", "9"))
    store = str(tmp_path / "first" / "policies")
    other = ("--kl.reference", "tinker://policy/weights/step-000002", "--kl.reference-store", store)
    first, _ = await play(config("--kl.coefficient", "0.1", *other))
    assert first["kl_reference"] > 1e-6
