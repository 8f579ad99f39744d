from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmarks.gpu import timings
from benchmarks.gpu.correctness import Finding
from benchmarks.gpu.timings import CASES, Case
from benchmarks.gpu_check import emulated, show_findings

from benchmarks import gpu_check

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


@pytest.mark.parametrize("rows", [12, 300])
def test_all_that_is_timed_adds_the_same_residual(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    added: dict[str, torch.Tensor] = {}
    names = ("_products", "_grouped", "_decode", "_fused", "_prefill")

    def once(calls: list[Callable[[], None]]) -> tuple[float, ...]:
        for call in calls:
            call()
        return (1.0,)

    def kept(name: str) -> Callable[..., Callable[[], None]]:
        original = getattr(timings, name)

        def build(*given: object) -> Callable[[], None]:
            copy = next(value for value in given if isinstance(value, timings._Copy))
            call = original(*given)

            def run() -> None:
                before = [y.clone() for y in copy.ys]
                call()
                if name not in added:
                    added[name] = torch.cat([y.float() - old.float() for y, old in zip(copy.ys, before, strict=True)])
                for y, old in zip(copy.ys, before, strict=True):
                    y.copy_(old)

            return run

        return build

    monkeypatch.setattr(timings, "_rounds", once)
    for name in names:
        monkeypatch.setattr(timings, name, kept(name))
    case = Case(name="small", rows=rows, adapters=3, rank=16, width=256, slices=2)
    torch.manual_seed(0)
    monkeypatch.setattr(timings, "_BEYOND_CACHES", 0.0)
    with emulated() as device:
        found = list(timings.timings(device, [case]))
        back = list(timings.backward_timings(device, [replace(case, slices=1)]))
    assert all(timing.rounds == (1.0,) for timing in (*found, *back)), [timing.why for timing in found]
    ours = ["_prefill"] if rows > 256 else ["_decode", "_fused"]
    assert sorted(added) == sorted(["_products", "_grouped", *ours])
    for name, residual in added.items():  # torch's ways round to 16 bits in between
        assert residual.shape == added["_products"].shape, name
        assert (residual - added["_products"]).abs().max() < 0.03 * added["_products"].abs().max(), name
    assert [timing.system for timing in back] == ["dS and dB", "dA", "dX"]


@pytest.mark.parametrize(
    ("cuda", "there", "cupy", "says"),
    [
        (None, False, True, "is built for CPUs"),
        ("13.0", False, True, "finds no GPU here"),
        ("13.0", True, False, r"pip install 'tinker-actors\[gpu\]'"),
        ("13.0", True, True, None),
    ],
)
def test_what_is_missing_is_said(
    monkeypatch: pytest.MonkeyPatch, cuda: str | None, there: bool, cupy: bool, says: str | None
) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    monkeypatch.setattr(gpu_check, "backend_for", lambda device: object() if cupy else None)
    found = gpu_check.missing()
    assert found is None if says is None else re.search(says, found or "")


@pytest.mark.skipif(torch.cuda.is_available(), reason="the whole check would run")
def test_the_script_ends_at_once_where_something_is_missing(tmp_path: Path) -> None:
    script = [str(ROOT / "benchmarks" / "gpu_check.sh")]
    environment = {**os.environ, "OUT": str(tmp_path)}
    for python, says in ((sys.executable, "--dry runs"), ("/bin/false", "make setup")):
        run = subprocess.run(
            script, env={**environment, "PYTHON": python}, capture_output=True, text=True, check=False, cwd=tmp_path
        )
        assert (run.returncode, says in run.stderr) == (2, True), run.stdout + run.stderr


def test_the_floor_counts_every_byte_once() -> None:
    case = Case(name="decode", rows=64, adapters=64, rank=16)
    weights, rows = 2 * 64 * 16 * 4096 * 2, 3 * 64 * 4096 * 2
    assert case.floor == pytest.approx((weights + rows) / 4.3e12 * 1e6)
    assert len({(case.name, case.rows, case.adapters, case.rank, case.slices) for case in CASES}) == len(CASES)
