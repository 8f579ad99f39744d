"""The emulated tests notice defects: each of those in `emulator.mutants` makes at least one of them fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from emulator.mutants import CONTROLS, MUTANTS

SOME = list(MUTANTS)[::4]


def undetected(names: list[str]) -> list[str]:
    """Those of these defects that no test notices."""
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-m", "emulator.mutation", *names],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(here), os.environ.get("PYTHONPATH", "")])},
    )
    assert done.returncode == 0, done.stderr
    found = dict(map(json.loads, done.stdout.splitlines()))
    assert set(found) == set(names)
    return [name for name in names if found[name] is None]


@pytest.mark.timeout(900)
def test_some_defects_of_every_kind_are_noticed() -> None:
    assert {MUTANTS[name].group for name in SOME} == {"decode", "prefill", "backward"}
    control = "decode: nothing"
    assert undetected([*SOME, control]) == [control]


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
def test_every_other_defect_is_noticed() -> None:
    others = [name for name in MUTANTS if name not in SOME]
    assert set(undetected([*others, *CONTROLS])) == set(CONTROLS)
