"""Runs that can't work: what is refused before there is a folder, and what is taken away again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tinker_actors.cli import main
from tinker_actors.scheduler import RunFolder, load_config


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["--model.context-length", "100000"], "model.context_length is 100000; tiny-llama has 512"),
        (["--policy.target-modules", '["no_proj"]'], "policy.target_modules has 'no_proj'; the modules of tiny-llama"),
        (
            ["--policy.target-modules", '["embed_tokens", "q_proj"]'],
            "policy.target_modules has 'embed_tokens', an embed",
        ),
        (
            ["--policies.solver.target-modules", '["no_proj"]', "--seats.agent.policy", "solver"],
            "policies.solver: policy.target_modules has 'no_proj'",
        ),
    ],
)
def test_what_the_model_has_not_is_refused_before_a_folder_is_made(
    keys: list[str], message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    assert main(["run", "number_guess", "--output", str(tmp_path / "new"), *keys]) == 2
    assert message in capfd.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize(
    ("job", "data", "line", "message"),
    [
        ("sft", "train", '{"messages": [}', "not valid JSON"),
        ("inference", "prompts", '{"messages": [}', "not valid JSON"),
        ("inference", "prompts", '{"prompt": 5}', "prompt is 5"),
    ],
)
def test_a_run_that_its_data_refuse_leaves_nothing(
    job: str, data: str, line: str, message: str, there: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    lines, output, written = tmp_path / "lines.jsonl", tmp_path / "new", tmp_path / "job.toml"
    lines.write_text(f"{line}\n")
    written.write_text(
        f'job = "{job}"\noutput = "{output}"\n[model]\nname = "tiny-llama"\n[data]\n{data} = ["{lines}"]\n'
    )
    if there:
        output.mkdir()
    assert main(["run", str(written), "--plain"]) == 2
    told = capfd.readouterr().err
    assert "lines.jsonl:1: " in told
    assert message in told
    assert output.exists() == there
    assert not there or not list(output.iterdir())


@pytest.mark.parametrize(("written", "told"), [('{"step":', "not valid JSON"), ("[1]", "no state"), ("{}", "no state")])
def test_a_damaged_state_is_named_and_stays(written: str, told: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    folder = RunFolder.create(load_config(None, ["--environment.name", "bandit", "--output", str(tmp_path / "run")]))
    folder.state.write_text(written)
    assert main(["run", str(folder.root), "--resume", "--plain"]) == 2
    assert f"{folder.state}: {told}" in capfd.readouterr().err
    assert folder.state.read_text() == written
