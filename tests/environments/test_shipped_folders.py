"""What every shipped environment's folder holds, and what loading them all costs a worker."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tinker_actors.environments import load_environment, shipped_environments
from tinker_actors.scheduler import check_job, load_config

FOLDERS = Path(__file__).parents[2] / "environments"
MODELS = {"last_word": pytest.mark.model}
CONFIGS = [
    pytest.param(file.parent.name, marks=MODELS.get(file.parent.name, ()))
    for file in sorted(FOLDERS.glob("*/config.toml"))
]


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_is_one_that_a_run_takes(name):
    config = load_config(FOLDERS / name / "config.toml", [])
    assert (config.name, config.environment.name) == (name, name)
    check_job(config)


@pytest.mark.parametrize("name", shipped_environments())
def test_a_readme_names_every_option(name):
    readme = (FOLDERS / name / "README.md").read_text()
    assert readme.startswith(f"# {name}\n")
    rows = re.findall(r"^\| (`.+?) \|", readme, flags=re.MULTILINE)
    named = {option for row in rows for option in re.findall(r"`(\w+)`", row)}
    code = load_environment(name).environment.__init__.__code__
    options = code.co_varnames[1 : code.co_argcount]
    assert not set(options) - named


def test_a_worker_that_has_loaded_them_all_has_loaded_no_model_library():
    names = ", ".join(map(repr, shipped_environments()))
    program = (
        "import sys; from tinker_actors.environments import load_environment\n"
        f"for name in ({names}): load_environment(name)()\n"
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
