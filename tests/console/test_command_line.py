"""What is typed wrongly: commands, actions and options that don't exist, and none at all."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tinker_actors.cli import main


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["rnu"], "unknown command 'rnu'; did you mean run?"),
        (["--", "rnu"], "unknown command 'rnu'; did you mean run?"),
        (["rnu", "number_guess", "--trainer.steps", "3"], "unknown command 'rnu'; did you mean run?"),
        (["quux"], "unknown command 'quux'; one of run, sample, play, "),
        (["models", "fecth", "smollm2-135m"], "unknown action 'fecth'; did you mean fetch?"),
        (["policies", "exprot"], "unknown action 'exprot'; did you mean export?"),
        (["keys", "revok"], "unknown action 'revok'; did you mean revoke?"),
        (["keys", "quux"], "unknown action 'quux'; one of add, ls, revoke, mesh is needed"),
        (["sample", "runs/a", "--promt", "hello"], "argument '--promt' is not understood; did you mean --prompt?"),
        (["policies", "rm", "runs/a", "--kep-last=3"], "'--kep-last=3' is not understood; did you mean --keep-last?"),
        (["ps", "a", "b"], "argument 'b' is not understood"),
        (["jobs", "--rows", "many"], "argument -n/--rows: invalid int value: 'many'"),
        (["top", "--sort", "speed"], "argument --sort: invalid choice: 'speed'"),
        (["run"], "the following arguments are required: TARGET; see `tinker-actors run --help`"),
    ],
)
def test_what_is_typed_wrongly_is_one_line_with_what_may_have_been_meant(
    arguments: list[str], told: str, capfd: pytest.CaptureFixture[str]
):
    assert main(arguments) == 2
    output, errors = capfd.readouterr()
    assert told in errors
    assert errors.startswith("tinker-actors: ")
    assert (output, errors.count("\n")) == ("", 1)


@pytest.mark.parametrize("group", [[], ["models"], ["policies"], ["keys"]])
def test_a_group_of_commands_alone_shows_which_there_are(group: list[str], capfd: pytest.CaptureFixture[str]):
    assert main(group) == 2
    shown = capfd.readouterr().err
    assert main([*group, "--help"]) == 0
    assert shown == capfd.readouterr().out
    assert shown.startswith("usage: tinker-actors ")


def test_the_package_runs_as_a_module():
    ended = subprocess.run(
        [sys.executable, "-m", "tinker_actors", "--version"], capture_output=True, text=True, check=True
    )
    assert ended.stdout.startswith("tinker-actors ")
