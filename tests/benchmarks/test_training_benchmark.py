import json
from pathlib import Path

import pytest
from benchmarks.training_peers import CASES, groups_of_8, peer_megabytes, ragged, rows_within, small_batches

from benchmarks import training


@pytest.mark.timeout(600)
def test_every_case_is_measured_in_rows_of_the_documented_shape(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tinker_actors.models import load_base, save_model_directory

    tiny = save_model_directory(load_base("tiny-llama").model, "tiny-llama", tmp_path / "model")
    monkeypatch.setattr(training, "model_directory", lambda scratch, small: (tiny, "a tiny model"))
    path = tmp_path / "rows.json"
    systems = "tinker_actors"
    options = ["--quick", "--rounds", "1", "--threads", "1", "--json", str(path)]
    training.main([*options, "--systems", systems, "--cases", "eight_policies"])
    rows = json.loads(path.read_text())
    for row in rows:
        assert set(row) == {"case", "system", "unit", "median", "low", "high"}
        assert 0 < row["low"] <= row["median"] <= row["high"] or row["case"] == "load"
    found = {(row["case"], row["system"]) for row in rows}
    assert ("eight_policies_tokens_per_s", "tinker_actors") in found
    assert ("eight_policies_peak_memory", "tinker_actors") in found
    assert "failed" not in capsys.readouterr().out


@pytest.mark.timeout(600)
def test_a_peer_that_is_not_installed_is_named_as_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(training.SHAPES[True]))
    monkeypatch.setattr(training, "model_directory", lambda scratch, small: (tmp_path, "none"))
    training.main(["--systems", "trl", "--cases", "step_ragged"])
    assert "left out: trl, trl is not installed" in capsys.readouterr().out


def test_batches_are_what_the_cases_say() -> None:
    lengths = [len(sequence.tokens) for sequence in ragged(16, 1000)]
    assert (min(lengths), max(lengths)) == (64, 1024)
    groups = groups_of_8(2, 1000)
    assert [len({tuple(one.prompt) for one in groups if one.group == group}) for group in (0, 1)] == [1, 1]
    assert len(small_batches(1, 1000)) == 8
    assert len(small_batches(4, 1000)[0]) == 4
    assert {"step_ragged", "step_group_of_8", "eight_policies"} < set(CASES)


def test_a_peer_takes_the_most_rows_that_fit_into_memory() -> None:
    shape = training.SHAPES[True]
    rows = rows_within(4000, shape, 1024)
    assert rows == 4
    assert peer_megabytes(shape, rows * 1024) <= 4000 < peer_megabytes(shape, 2 * rows * 1024)
    assert rows_within(500, shape, 1024) == 0


def test_memory_that_holds_no_row_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(training.SHAPES[False]))
    with pytest.raises(SystemExit, match="--memory is 1 GB; step_ragged needs"):
        training.peer_rows("step_ragged", tmp_path, 1000)
