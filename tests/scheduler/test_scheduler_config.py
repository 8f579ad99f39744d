"""Configurations: what is read, what wins, and one clear line for what can't work."""

from __future__ import annotations

from pathlib import Path

import pytest
import tomli_w

from tinker_actors.environments import Forfeit
from tinker_actors.errors import ConfigError, RunError
from tinker_actors.scheduler import RunFolder, RunState, find_runs, load_config
from tinker_actors.scheduler.league import Member, Pool
from tinker_actors.scheduler.loading import parse_config
from tinker_actors.scheduler.run_folder import PolicyState
from tinker_actors.scheduler.versions import Version
from tinker_actors.training import MuonParams

ENVIRONMENT = ["--environment.name", "number_guess"]


def test_overrides_win_over_the_file_and_the_file_over_defaults(tmp_path: Path):
    path = tmp_path / "run.toml"
    path.write_text('[environment]\nname = "arithmetic"\n[trainer]\nsteps = 7\nlearning_rate = 1e-3\n')
    config = load_config(path, ["--trainer.learning-rate", "1e-4"], defaults={"trainer": {"steps": 1, "epochs": 2}})
    assert (config.trainer.steps, config.trainer.learning_rate, config.trainer.epochs) == (7, 1e-4, 2)


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (["--environment.options.high=15"], 15),
        (["--environment.options.high", "15"], 15),
        (["--environment.options.high", "fifteen"], "fifteen"),
        (["--environment.options.high", "[1, 2]"], [1, 2]),
        (["--environment.options.high", "true"], True),
    ],
)
def test_override_values_are_toml_where_they_can_be_and_text_elsewhere(arguments: list[str], value: object):
    assert load_config(None, ENVIRONMENT + arguments).environment.options == {"high": value}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            [*ENVIRONMENT, "--trainer.learning-rat", "1"],
            "unknown key trainer.learning_rat; did you mean trainer.learning_rate",
        ),
        ([*ENVIRONMENT, "--tariner.steps", "1"], "unknown key tariner; did you mean trainer"),
        ([*ENVIRONMENT, "--trainer.steps", "soon"], "trainer.steps is 'soon'; input should be a valid integer"),
        ([*ENVIRONMENT, "--algorithm.name", "gppo"], "algorithm.name is 'gppo'; grpo, grpo_no_std, "),
        ([*ENVIRONMENT, "--rollouts.temperature", "0"], "rollouts.temperature is 0; input should be greater than 0"),
        ([*ENVIRONMENT, "--rollouts.group-size", "1"], "rollouts.group_size is 1"),
        (
            [*ENVIRONMENT, "--algorithm.name", "pass_at_k", "--rollouts.group-size", "3"],
            "algorithm.name 'pass_at_k' compares at least 4 episodes of a task",
        ),
        (
            [*ENVIRONMENT, "--algorithm.name", "gae"],
            "algorithm.name is 'gae', which needs values; policy.value_head true",
        ),
        (
            [*ENVIRONMENT, "--policy.value-head", "true"],
            "policy.value_head is true, but algorithm.name 'grpo' has no use for it",
        ),
        (
            [*ENVIRONMENT, "--algorithm.value-clip", "0.1"],
            "algorithm.value_clip is 0.1, but grpo has no values; gae does",
        ),
        (
            [*ENVIRONMENT, "--algorithm.pass-k", "4"],
            "algorithm.pass_k is 4, but grpo has no such setting; it has none",
        ),
        (
            [*ENVIRONMENT, "--algorithm.name", "turn_returns", "--algorithm.discount", "1.5"],
            "algorithm.discount is 1.5; a number from 0 to 1 is needed",
        ),
        (
            [
                *(*ENVIRONMENT, "--algorithm.name", "reinforce_pp", "--rollouts.group-size", "1"),
                *("--rollouts.filter", "varied_rewards"),
            ],
            "rollouts.filter is 'varied_rewards' and rollouts.group_size is 1",
        ),
        (
            [*ENVIRONMENT, "--algorithm.aggregation-constant", "5"],
            "algorithm.aggregation_constant is 5, but algorithm.aggregation is 'token_mean'",
        ),
        (
            [*ENVIRONMENT, "--kl.reference-store", "runs/a"],
            "kl.reference_store is 'runs/a', but reference is 'initial', which no store holds",
        ),
        ([*ENVIRONMENT, "--kl.coefficient", "inf"], "kl.coefficient is inf; input should be a finite number"),
        ([*ENVIRONMENT, "--policy.targets", "mlp"], "policy.targets is 'mlp'; a list is needed"),
        (
            [*ENVIRONMENT, "--policy.target-modules", "[]"],
            "policy.target_modules is []; 'all-linear' or a list of module names is needed",
        ),
        (
            [*ENVIRONMENT, "--policy.kind", "full", "--policy.targets", '["mlp"]'],
            "policy.kind is 'full', which has no targets",
        ),
        ([*ENVIRONMENT, "--trainer", "3"], "trainer is 3; a section is needed, with keys of its own: backend, beta1, "),
        (
            [*ENVIRONMENT, "--tracking.wandb", "true"],
            "tracking.wandb is True; a section is needed, with keys of its own: entity, mode, project, tags",
        ),
        (
            [*ENVIRONMENT, "--tracking.wandb.projekt", "x"],
            "unknown key tracking.wandb.projekt; did you mean tracking.wandb.project?",
        ),
        ([*ENVIRONMENT, "--data.train", "x"], 'unknown key data; that is a key of job = "sft"; known here: algorithm'),
        ([*ENVIRONMENT, "--name", "a/b"], "name is 'a/b'"),
        ([*ENVIRONMENT, "--seed"], "--seed has no value"),
        ([*ENVIRONMENT, "seed"], "argument 'seed' is not understood"),
        ([], "environment is missing"),
    ],
)
def test_what_can_not_work_is_refused_in_one_line_that_names_it(arguments: list[str], message: str):
    with pytest.raises(ConfigError) as caught:
        load_config(None, arguments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_bounds_an_episode_and_what_a_failed_seat_does_to_it():
    own = ["--rollouts.forfeit", "loss", "--rollouts.seat-timeouts.x", "2.5", "--rollouts.turn-timeout", "9"]
    limits = load_config(None, [*ENVIRONMENT, *own]).rollouts.limits
    assert (limits.forfeit, limits.seat_seconds, limits.turn_seconds) == (Forfeit.LOSS, {"x": 2.5}, 9.0)
    assert load_config(None, ENVIRONMENT).rollouts.limits.forfeit is None
    with pytest.raises(ConfigError, match=r"seat_seconds\['x'\] is 0"):
        load_config(None, [*ENVIRONMENT, "--rollouts.seat-timeouts.x", "0"])


def test_a_file_that_is_no_toml_or_not_there_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match="no such file"):
        load_config(tmp_path / "absent.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("a = = 1")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_config(broken)


def test_overrides_leave_the_defaults_they_were_laid_over_alone():
    defaults = {"environment": {"name": "arithmetic", "options": {"digits": 1}}}
    load_config(None, ["--environment.options.digits", "2"], defaults=defaults)
    assert defaults["environment"]["options"] == {"digits": 1}


def test_the_resolved_configuration_reads_back_equal(tmp_path: Path):
    config = load_config(
        None, [*ENVIRONMENT, "--output", str(tmp_path / "run"), "--policy.target-modules", '["q_proj"]']
    )
    folder = RunFolder.create(config)
    assert folder.load_config() == config
    assert folder.load_config(("--trainer.steps", "99")).trainer.steps == 99


def test_a_policy_of_all_weights_has_no_adapter_to_configure(tmp_path: Path):
    full = [*ENVIRONMENT, "--policy.kind", "full", "--output", str(tmp_path / "run")]
    config = load_config(None, full)
    assert RunFolder.create(config).load_config().policy.kind == "full"
    with pytest.raises(ConfigError, match="which has no rank and no alpha"):
        load_config(None, [*full, "--policy.rank", "4", "--policy.alpha", "8"])
    with pytest.raises(ConfigError, match=r"warmup.method is 'lora', but policy.kind 'full' has no adapter"):
        load_config(None, [*full, "--warmup.method", "lora"])


def test_a_run_folder_that_holds_something_is_not_overwritten(tmp_path: Path):
    (tmp_path / "precious").write_text("x")
    with pytest.raises(RunError, match="is not empty"):
        RunFolder.create(load_config(None, [*ENVIRONMENT, "--output", str(tmp_path)]))
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_a_run_folder_that_can_not_be_written_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError, match=r"can't be written"):
        RunFolder.create(load_config(None, [*ENVIRONMENT, "--output", str(tmp_path / "file" / "run")]))


def test_new_runs_of_one_name_get_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    config = load_config(None, [*ENVIRONMENT, "--name", "twice"])
    folders = [RunFolder.create(config).root for _ in range(2)]
    assert [path.name for path in find_runs(Path("runs/twice"))] == [folder.name for folder in folders]


def test_state_round_trips_and_records_past_it_are_dropped(tmp_path: Path):
    folder = RunFolder(tmp_path)
    assert folder.load_state() is None
    pool = Pool(members=(Member(snapshot="tinker://p/sampler_weights/1", games=2.0, points=1.5),))
    state = RunState(
        step=2,
        base_model="m",
        eval_before=0.5,
        seconds=1.5,
        policies={"p": PolicyState(checkpoint="tinker://p/weights/x", baselines={"duel/a": 0.25})},
        versions=(Version(snapshots={"p": "tinker://p/sampler_weights/3"}, pools={"b": pool}),),
        frozen={"initial of p": "tinker://p/sampler_weights/1"},
    )
    folder.save_state(state)
    assert folder.load_state() == state
    folder.metrics.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"step": 4, "cut')
    folder.forget_after(2)
    assert folder.metrics.read_text() == '{"step": 1}\n{"step": 2}\n'


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="is not a run folder"):
        RunFolder(tmp_path).load_config()


def test_shipped_examples_are_valid():
    examples = sorted(Path(__file__).parents[2].glob("examples/*/config.toml"))
    assert len(examples) >= 2
    for path in examples:
        assert tomli_w.dumps(load_config(path).model_dump(mode="json", exclude_none=True))


def test_the_optimizer_of_a_step_follows_from_the_step_alone_so_a_resumed_run_goes_on_with_it():
    falling = [*ENVIRONMENT, "--trainer.steps", "10", "--trainer.learning-rate", "0.1", "--trainer.schedule", "linear"]
    uninterrupted = [load_config(None, falling).trainer.optimizer_params(step) for step in range(1, 11)]
    assert [params.learning_rate for params in uninterrupted] == pytest.approx(
        [0.1 - 0.01 * step for step in range(10)]
    )
    resumed = load_config(None, falling)
    assert resumed.trainer.optimizer_params(5) == uninterrupted[4]
    muon = load_config(
        None, [*ENVIRONMENT, "--policy.kind", "full", "--trainer.optimizer", "muon", "--trainer.momentum", "0.9"]
    )
    assert muon.trainer.optimizer_params(1) == MuonParams(learning_rate=1e-4, momentum=0.9, grad_clip_norm=1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trainer.optimizer", "muon"], "trainer.optimizer is 'muon', but policy.kind 'lora'"),
        (["--trainer.momentum", "0.5"], "trainer.momentum is 0.5, but optimizer 'adamw' has none"),
        (["--trainer.final-ratio", "0.5"], "trainer.final_ratio is 0.5, but schedule 'constant' never falls"),
        (["--trainer.optimizer", "lion"], "trainer.optimizer is 'lion'; input should be 'adamw'"),
    ],
)
def test_an_optimizer_or_schedule_that_can_not_work_is_refused(arguments: list[str], message: str):
    with pytest.raises(ConfigError) as caught:
        load_config(None, ENVIRONMENT + arguments)
    assert message in str(caught.value)


def test_layers_are_named_by_role_or_by_module_and_not_both():
    config = {"environment": {"name": "number_guess"}, "policy": {"targets": ["attention", "unembed"]}}
    assert parse_config(config, source="x").policy.targets == ("attention", "unembed")
    config["policy"]["target_modules"] = ["q_proj"]
    with pytest.raises(ConfigError, match=r"policy\.targets is .* and target_modules .*; one or the other is needed"):
        parse_config(config, source="x")
