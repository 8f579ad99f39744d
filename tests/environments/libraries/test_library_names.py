"""What names of other libraries' environments lead to, whatever is installed."""

import subprocess
import sys

import pytest

from tinker_actors.environments import load_environment
from tinker_actors.environments.libraries import LIBRARIES
from tinker_actors.errors import ConfigError

PACKAGES = ["gymnasium", "pettingzoo", "textarena", "reasoning_gym", "verifiers", "openenv", "tinker_cookbook"]


def test_a_library_that_is_not_installed_is_named_with_its_extra(monkeypatch):
    extras = {}
    for package in PACKAGES:
        monkeypatch.setitem(sys.modules, package, None)
    for library in LIBRARIES:
        monkeypatch.delitem(sys.modules, f"tinker_actors.environments.libraries.{library}", raising=False)
        with pytest.raises(ConfigError, match="pip install") as raised:
            load_environment(f"{library}:anything")
        extras[library] = str(raised.value).partition("[")[2].partition("]")[0]
    assert extras == {
        "gymnasium": "gymnasium",
        "pettingzoo": "pettingzoo",
        "pettingzoo_parallel": "pettingzoo",
        "textarena": "textarena",
        "reasoning_gym": "reasoning-gym",
        "verifiers": "verifiers",
        "openenv": "openenv",
        "cookbook": "cookbook",
    }


def test_a_library_is_imported_when_it_is_named_and_not_before():
    script = "import sys, tinker_actors.environments.libraries as l; l.LIBRARIES; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not set(PACKAGES) & set(loaded)
