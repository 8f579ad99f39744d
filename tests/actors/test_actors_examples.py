"""The examples print what their README says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "examples/actors/README.md").read_text()
EXPECTED: dict[str, str] = dict(re.findall(r"```\npython (\S+\.py)\n```\n\n```\n(.*?)```", README, re.DOTALL))


@pytest.mark.parametrize("script", EXPECTED)
def test_an_example_prints_what_its_readme_says(script: str) -> None:
    run = subprocess.run([sys.executable, script], cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)
    assert (run.stdout, run.returncode) == (EXPECTED[script], 0), run.stderr


def test_every_example_is_in_the_readme() -> None:
    scripts = {str(path.relative_to(ROOT)) for path in (ROOT / "examples/actors").rglob("*.py")}
    assert scripts == set(re.findall(r"python (\S+\.py)", README))
