from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.gpu.correctness import Finding
from benchmarks.gpu.timings import CASES, Case
from benchmarks.gpu_check import show_findings

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_checks_pass_on_the_emulated_device() -> None:
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--dry"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "all good" in run.stdout
    assert "BAD" not in run.stdout
    for check in ("decode against float64", "gradients against float64", "rows alone as in a batch", "five steps"):
        assert check in run.stdout


def test_one_bad_finding_spoils_the_check(capsys: pytest.CaptureFixture[str]) -> None:
    good = Finding(check="first", shown="error 1e-07", good=True)
    bad = Finding(check="second", shown="bits differ", good=False)
    assert show_findings([good])
    assert not show_findings([good, bad, good])
    assert "BAD   second" in capsys.readouterr().out


def test_the_floor_counts_every_byte_once() -> None:
    case = Case(name="decode", rows=64, adapters=64, rank=16)
    weights, rows = 2 * 64 * 16 * 4096 * 2, 3 * 64 * 4096 * 2
    assert case.floor == pytest.approx((weights + rows) / 4.3e12 * 1e6)
    assert len({(case.name, case.rows, case.adapters, case.rank, case.slices) for case in CASES}) == len(CASES)
