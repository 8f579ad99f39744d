"""Official clients of many versions against one service: `make test-sdks` runs them.

Each lies in a folder of its own below `TINKER_SDKS`, and is found before the one of this project's environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
VERSIONS = (HERE / "versions.txt").read_text().split()

pytestmark = [pytest.mark.sdks, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service of a tiny model."""
    root = tmp_path_factory.mktemp("service")
    command = [sys.executable, "-m", "tinker_actors.cli", "serve", "--model", "tiny-llama", "--port", "0"]
    with (
        (root / "serve.log").open("w") as log,
        subprocess.Popen([*command, "--root", str(root / "data")], stdout=subprocess.PIPE, stderr=log, text=True) as it,
    ):
        assert it.stdout is not None
        try:
            yield next(line.split()[-1] for line in it.stdout if "http://" in line)
        finally:
            it.terminate()
            it.wait(30)


@pytest.fixture(scope="module")
def present(url: str) -> dict[str, object]:
    """What the client of this project's environment sees."""
    return seen(url, dict(os.environ))


def seen(url: str, environment: dict[str, str]) -> dict[str, object]:
    """What a client sees of a round of training and sampling."""
    done = subprocess.run(
        [sys.executable, str(HERE / "training_round.py"), "tiny-llama"],
        env={**environment, "TINKER_BASE_URL": url, "TINKER_API_KEY": "tml-local", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_loss_falls_and_a_resumed_policy_goes_on_where_the_saved_one_stood(present: dict[str, object]):
    first, _, last = present["losses"]  # pyright: ignore[reportGeneralTypeIssues]
    assert last < first / 2
    kept, resumed = present["resumed"]  # pyright: ignore[reportGeneralTypeIssues]
    assert kept == resumed


@pytest.mark.parametrize("version", VERSIONS)
def test_a_client_of_another_version_sees_the_same_numbers(version: str, url: str, present: dict[str, object]):
    folder = Path(os.environ["TINKER_SDKS"]).absolute() / version
    assert (folder / "tinker").is_dir(), f"{folder} has no client"
    found = seen(url, {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])})
    assert found.pop("sdk") == version
    assert found == {name: value for name, value in present.items() if name != "sdk"}
