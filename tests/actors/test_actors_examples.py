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
    run = subprocess.run([sys.executable, script], cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)
    assert (run.stdout, run.returncode) == (EXPECTED[script], 0), run.stderr


def test_two_processes_share_work_as_two_hosts_would() -> None:
    folder = ROOT / "examples/actors/two_hosts"
    listen = ["--listen", "tcp://127.0.0.1:0"]  # a free port: the README's may be taken here
    head = subprocess.Popen([sys.executable, "head.py", *listen], cwd=folder, stdout=subprocess.PIPE, text=True)
    with head:
        assert head.stdout is not None
        url = head.stdout.readline().split()[-1]
        join = [sys.executable, "-m", "tinker_actors.cli", "node", "--join", url, "--import", "work"]
        node = subprocess.run(join, cwd=folder, capture_output=True, text=True, timeout=250, check=False)
        assert head.stdout.read() == "sum: 333328333350000\n"
    assert (head.returncode, node.returncode) == (0, 0), node.stderr


def test_every_example_is_in_a_readme() -> None:
    folder = ROOT / "examples/actors"
    readmes = "".join(path.read_text() for path in folder.rglob("README.md"))
    scripts = {path.name for path in folder.rglob("*.py")}
    assert {name for name in scripts if name not in readmes} == set()
