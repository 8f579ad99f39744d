"""What all benchmarks have in common: how they are called, and the rows that they write."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.gpu.timings import Case, Timing
from benchmarks.gpu_check import show_timings

from benchmarks import table

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = [file.stem for file in sorted((ROOT / "benchmarks").glob("*.py")) if "ArgumentParser(" in file.read_text()]
HELP = """
import runpy, sys
for name in sys.argv[1:]:
    sys.argv = [name, "--help"]
    print("command", name)
    try:
        runpy.run_module(f"benchmarks.{name}", run_name="__main__")
    except SystemExit as end:
        assert not end.code, name
"""


@pytest.mark.slow
def test_every_benchmark_can_be_run_often_and_writes_its_rows() -> None:
    assert {"actors", "gateway", "rollouts", "sampler", "training"} <= set(COMMANDS)
    command = [sys.executable, "-c", HELP, *COMMANDS]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    told = dict(part.split("\n", 1) for part in run.stdout.split("command ")[1:])
    assert list(told) == COMMANDS
    for name, text in told.items():
        assert "--quick" in text, name
        assert "--json" in text, name


def test_timings_on_a_gpu_are_rows_like_all_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = Case(name="decode", rows=64, adapters=8, rank=16)
    timings = [
        Timing(case=case, system="decode_fused", rounds=(4.0, 3.0, 9.0)),
        Timing(case=case, system="decode in two", rounds=(5.0,)),
        Timing(case=case, system="torch, grouped_mm", why="no such shape"),
    ]
    file = tmp_path / "rows.json"
    table.save(show_timings(timings), file)
    assert "left out: no such shape" in capsys.readouterr().out
    floor = pytest.approx(case.floor)
    assert json.loads(file.read_text()) == [
        {"case": "decode 64/8 r16", "system": system, "unit": "us", "median": median, "low": low, "high": high}
        for system, median, low, high in (
            ("decode_fused", 4.0, 3.0, 9.0),
            ("floor", floor, floor, floor),
            ("decode in two", 5.0, 5.0, 5.0),
        )
    ]
