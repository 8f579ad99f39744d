"""Who learns and who plays where: what the tables mean, and one clear line for what can't work."""

from __future__ import annotations

from pathlib import Path

import pytest

from tinker_actors.errors import ConfigError
from tinker_actors.scheduler import RunFolder, check_job, load_config
from tinker_actors.scheduler.line_ups import Players

DUEL = ["--environment.name", str(Path(__file__).parents[1] / "rollouts" / "duel_environment.py")]
TWO = [*DUEL, "--policies.first.rank", "4", "--policies.second.learning-rate", "1e-2"]


def players(*arguments: str) -> Players:
    return Players.of(load_config(None, [*DUEL, *arguments]), ("a", "b"))


def test_without_tables_one_policy_plays_every_seat():
    found = players()
    assert {seat: (entry.player, entry.policy) for seat, entry in found.training.items()} == {
        "a": ("policy", "policy"),
        "b": ("policy", "policy"),
    }
    assert found.evaluation == found.training


def test_a_policys_table_is_laid_over_the_sections_of_all():
    config = load_config(None, [*TWO, "--policy.rank", "8", "--trainer.learning-rate", "1e-3"])
    learners = config.learners()
    assert [(name, entry.policy.rank, entry.trainer.learning_rate) for name, entry in learners.items()] == [
        ("first", 4, 1e-3),
        ("second", 8, 1e-2),
    ]


def test_a_seat_is_played_by_the_policy_of_its_name_or_by_the_only_one_unless_a_table_says_else():
    named = players("--policies.a.rank", "4", "--policies.b.rank", "8")
    assert [entry.policy for entry in named.training.values()] == ["a", "b"]
    only = players("--policies.first.rank", "4", "--seats.b.player", "snapshot")
    assert [(entry.player, entry.policy) for entry in only.training.values()] == [
        ("policy", "first"),
        ("snapshot", "first"),
    ]
    crossed = players(
        "--policies.a.rank", "4", "--policies.b.rank", "8", "--seats.a.policy", "b", "--seats.b.policy", "a"
    )
    assert [entry.policy for entry in crossed.training.values()] == ["b", "a"]


def test_evaluations_are_played_as_training_but_for_their_own_tables_and_against_a_still_opponent():
    found = players("--seats.b.player", "league", "--evaluation.seats.a.temperature", "0.5")
    assert found.training["b"].player == "league"
    assert (found.evaluation["b"].player, found.evaluation["b"].snapshot) == ("snapshot", "initial")
    assert found.evaluation["a"].temperature == 0.5
    own = players("--seats.b.player", "league", "--evaluation.seats.b.player", "demonstration")
    assert own.evaluation["b"].player == "demonstration"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policies.a.rnk", "4"], "unknown key policies.a.rnk; did you mean policies.a.rank?"),
        (["--policies.a.rank", "0"], "policies.a.rank is 0; input should be greater than or equal to 1"),
        (["--policies.a.value-head", "true"], "unknown key policies.a.value_head"),
        (["--policies.a.target-modules", "[]"], "policies.a.target_modules is []; 'all-linear' or a list"),
        (["--policies.a.optimizer", "muon"], "trainer.optimizer is 'muon', but policy.kind 'lora'"),
        (["--policies.a.final-ratio", "0.5"], "policies.a: final_ratio is 0.5, but schedule 'constant' never falls"),
        (["--policies", '{"a.b" = {}}'], "policies.a.b"),
        (["--policies.a", "3"], "policies.a is 3; a section is needed, with keys of its own: alpha, "),
        (["--seats.a.plyer", "script"], "unknown key seats.a.plyer; did you mean seats.a.player?"),
        (["--seats.a.player", "robot"], "seats.a.player is 'robot'; input should be 'policy'"),
        (
            ["--seats.a.player", "person", "--seats.a.function", "f"],
            "function is 'f', but player 'person' has no such key",
        ),
        (["--seats.a.player", "endpoint"], "seats.a.harness is None and command None; player 'endpoint' needs one"),
        (
            ["--seats.a.player", "endpoint", "--seats.a.harness", "m:f", "--seats.a.difference", "honour"],
            "seats.a.difference is 'honour'",
        ),
        (
            ["--seats.a.player", "endpoint", "--seats.a.harness", "m:f", "--seats.a.temperature", "0"],
            "temperature is 0.0; a policy that learns is sampled at a temperature above 0",
        ),
        (["--seats.a.harness", "m:f"], "seats.a.harness is 'm:f', but player 'policy' has no such key"),
        (["--seats.a.player", "script"], "seats.a.function is missing; player 'script' plays by one"),
        (["--seats.a.rule", "age"], "seats.a.rule is 'age', but player 'policy' has no such key; those are policy, "),
        (["--seats.a.temperature", "0"], "seats.a.temperature is 0.0; a policy that learns is sampled"),
        (["--seats.a.policy", "x"], "seats.a.policy is 'x', which is none of this run's; those are policy"),
        (
            ["--seats.a.player", "league", "--seats.a.latest-k", "3"],
            "seats.a.latest_k is 3, but rule 'uniform' has none; 'latest_k' does",
        ),
        (
            ["--seats.a.player", "league", "--seats.a.self-share", "1.5"],
            "seats.a.self_share is 1.5; input should be less than or equal to 1",
        ),
        (["--seats.a.player", "snapshot", "--seats.a.snapshot", "latest"], "snapshot is 'latest', but no store"),
        (
            ["--seats.a.player", "snapshot", "--seats.a.snapshot", "newest"],
            "seats.a.snapshot is no 'initial', 'latest' or handle: 'newest' is no handle",
        ),
        (
            ["--seats.a.player", "snapshot", "--seats.a.snapshot", "initial", "--seats.a.store", "x"],
            "snapshot is 'initial', which is this run's, and store is 'x'",
        ),
        (["--evaluation.seats.a.player", "league"], "seat 'a' has player 'league', whose pool changes"),
        (["--evaluation.seats.a.policy", "x"], "evaluation.seats.a.policy is 'x', which is none of this run's"),
    ],
)
def test_tables_that_can_not_work_are_refused_in_one_line_that_names_the_key(arguments: list[str], message: str):
    with pytest.raises(ConfigError) as caught:
        load_config(None, [*DUEL, *arguments])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seats.c.player", "policy"], "seats.c: the environment's seats are a, b"),
        (["--evaluation.seats.c.player", "policy"], "evaluation.seats.c: the environment's seats are a, b"),
        (["--rollouts.seat_timeouts.c", "2.0"], "rollouts.seat_timeouts.c: the environment's seats are a, b"),
        (["--policies.x.rank", "4", "--policies.y.rank", "4"], "seats.a names no policy, and this run has several"),
        (
            ["--policies.a.rank", "4", "--policies.b.rank", "4", "--seats.b.policy", "a"],
            "policy 'b' plays no seat, so that it would never learn",
        ),
        (
            ["--seats.a.player", "demonstration", "--seats.b.player", "demonstration"],
            "policy 'policy' plays no seat",
        ),
        (
            ["--seats.b.player", "script", "--seats.b.function", "play"],
            "seats.b: scripted seat 'play' is not found",
        ),
        (
            ["--seats.b.player", "script", "--seats.b.function", "math:sqrt", "--seats.b.options.skill", "1"],
            "seats.b: scripted seat 'math:sqrt' can't be called with (messages, skill=1)",
        ),
        (
            ["--seats.b.player", "snapshot", "--seats.b.store", "/nowhere", "--seats.b.policy", "p"],
            "seats.b: policy 'p' has no sampler_weights in /nowhere",
        ),
        (
            ["--seats.b.player", "endpoint", "--seats.b.harness", "no.such:play"],
            "seats.b: harness 'no.such:play' is not found",
        ),
        (
            ["--seats.b.player", "endpoint", "--seats.b.harness", "math:dist", "--seats.b.options.skill", "1"],
            "seats.b: harness 'math:dist' can't be called with (call, skill=1)",
        ),
        (
            ["--seats.b.player", "endpoint", "--seats.b.command", '["/no/such/program"]'],
            "seats.b: command '/no/such/program' is not a program that can be found",
        ),
    ],
)
def test_what_does_not_fit_the_environment_is_refused_before_anything_starts(arguments: list[str], message: str):
    with pytest.raises(ConfigError) as caught:
        check_job(load_config(None, [*DUEL, *arguments]))
    assert message in str(caught.value)


def test_players_cannot_rotate_in_a_game_for_one():
    with pytest.raises(ConfigError, match=r"rotate_seats is true, but the environment has one seat, 'agent'"):
        check_job(load_config(None, ["--environment.name", "number_guess", "--rollouts.rotate-seats", "true"]))


def test_tables_are_written_down_with_the_run_and_read_back_equal(tmp_path: Path):
    config = load_config(
        None,
        [
            *(*TWO, "--output", str(tmp_path / "run"), "--seats.a.policy", "first", "--seats.b.policy", "second"),
            *("--evaluation.seats.b.player", "script", "--evaluation.seats.b.function", "math:sqrt"),
        ],
    )
    assert RunFolder.create(config).load_config() == config


def test_a_run_says_who_plays_and_who_is_played_against_in_evaluations():
    plain = load_config(None, DUEL)
    assert Players.of(plain, ("a", "b")).title(plain) == "run"
    config = load_config(
        None, [*DUEL, "--seats.b.player", "league", "--evaluation.seats.b.player", "demonstration", "--name", "duel"]
    )
    found = Players.of(config, ("a", "b"))
    assert found.title(config) == "duel (a policy policy, b league of policy; evaluated with b demonstration)"
    assert found.described() == {"a": "policy policy", "b": "demonstration"}
