"""Metrics files and plots."""

from __future__ import annotations

from pathlib import Path

import pytest

from tinker_actors.errors import DataError
from tinker_actors.telemetry import JsonlWriter, keep_records, plot_rewards, read_jsonl


def test_records_reach_the_file_whole_and_at_once(tmp_path: Path):
    path = tmp_path / "m.jsonl"
    with JsonlWriter(path) as writer:
        writer.write({"step": 1, "text": "ä\n"})
        assert read_jsonl(path) == [{"step": 1, "text": "ä\n"}]
    with JsonlWriter(path) as writer:
        writer.write({"step": 2})
    assert [record["step"] for record in read_jsonl(path)] == [1, 2]


def test_numbers_that_json_can_not_hold_are_refused(tmp_path: Path):
    with JsonlWriter(tmp_path / "m.jsonl") as writer, pytest.raises(ValueError, match="not JSON compliant"):
        writer.write({"loss": float("nan")})


def test_a_line_cut_by_a_crash_is_left_out_and_removed(tmp_path: Path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"ste')
    assert [record["step"] for record in read_jsonl(path)] == [1, 2]
    keep_records(path, lambda record: record["step"] < 2)
    assert path.read_text() == '{"step": 1}\n'
    assert read_jsonl(tmp_path / "absent.jsonl") == []


def test_a_damaged_line_is_named(tmp_path: Path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\n{"ste\n{"step": 3}\n')
    with pytest.raises(DataError, match=r"m\.jsonl:2: not valid JSON"):
        read_jsonl(path)


def test_a_plot_is_a_png_even_of_nothing(tmp_path: Path):
    for name, rewards in (("some", [(1, 0.1), (2, 0.4)]), ("none", [])):
        path = tmp_path / f"{name}.png"
        plot_rewards(path, title="demo", rewards=rewards, evaluations=[])
        assert path.read_bytes().startswith(b"\x89PNG")
    both = tmp_path / "both.png"
    plot_rewards(
        both, title="demo", rewards=[], evaluations=[], policies={"a": ([(1, 0.1)], []), "b": ([(1, -0.1)], [(0, 0.0)])}
    )
    assert both.read_bytes() != (tmp_path / "none.png").read_bytes()
