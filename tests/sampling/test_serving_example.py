"""The example of a web service prints what its README says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("uvicorn")

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/serving_policies"


@pytest.mark.timeout(400)
def test_it_prints_what_its_readme_says():
    (expected,) = re.findall(r"```\n(.*?)```", (EXAMPLE / "README.md").read_text(), re.DOTALL)
    run = subprocess.run(
        [sys.executable, str(EXAMPLE / "app.py")], cwd=ROOT, capture_output=True, text=True, timeout=380, check=False
    )
    assert (run.stdout, run.returncode) == (expected, 0), run.stderr
