"""From names and paths to environments."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tinker_actors.environments import EnvironmentSpec, load_environment, shipped_environments
from tinker_actors.errors import ConfigError

SUM = """
import random
from tinker_actors.environments import Environment, Step

class Sum(Environment):
    def __init__(self, top: int = 10, scale: float = 1.0, strict: bool = False):
        self.top = top
    def reset(self, seed):
        return "1+1="
    def step(self, action):
        return Step(reward=1.0, terminated=True)
"""
OTHER = """
class Other(Sum):
    pass
"""


@pytest.fixture
def write(tmp_path):
    def write(text, name="my_env.py"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        return file

    return write


def test_a_file_with_one_environment_needs_no_class_name(write):
    factory = load_environment(str(write(SUM)), top=5)
    assert (factory.name, factory.environment.__name__) == ("my_env", "Sum")
    assert factory().top == 5
    assert factory() is not factory()


def test_an_edited_file_is_loaded_anew(write):
    file = write(SUM)
    first = load_environment(str(file)).environment
    assert load_environment(str(file)).environment is first
    write(SUM.replace("1+1=", "2+2="))
    os.utime(file, ns=(0, 0))
    assert load_environment(str(file))().reset(0) == "2+2="


def test_a_folder_is_named_after_itself(write):
    file = write(SUM, "sums/environment.py")
    assert load_environment(str(file.parent)).name == "sums"


def test_the_spec_is_plain_data_that_loads_elsewhere(write, tmp_path, monkeypatch):
    write(SUM)
    monkeypatch.chdir(tmp_path)
    spec = load_environment("./my_env.py", top=3).spec
    monkeypatch.chdir("/")
    assert spec == EnvironmentSpec(source=str(tmp_path / "my_env.py"), options={"top": 3})
    assert spec.load()().top == 3


def test_a_class_is_picked_by_name(write):
    file = write(SUM + OTHER)
    assert load_environment(f"{file}:Other").environment.__name__ == "Other"
    with pytest.raises(ConfigError, match=r"several environments, Other, Sum; name one"):
        load_environment(str(file))
    with pytest.raises(ConfigError, match=r"no class 'Othr'; did you mean 'Other'\?"):
        load_environment(f"{file}:Othr")
    with pytest.raises(ConfigError, match=r"'random' in .* is not a subclass of Environment"):
        load_environment(f"{file}:random")


def test_a_class_in_a_package_is_picked_by_module(write, tmp_path, monkeypatch):
    write(SUM, "loaded_as_module.py")
    monkeypatch.syspath_prepend(tmp_path)
    assert load_environment("loaded_as_module:Sum").spec.source == "loaded_as_module:Sum"
    with pytest.raises(ConfigError, match=r"module 'no\.such' can't be imported: ModuleNotFoundError"):
        load_environment("no.such:Sum")


def test_shipped_environments_are_found_by_name():
    assert set(shipped_environments()) >= {"arithmetic", "number_guess", "last_word"}
    for name in shipped_environments():
        assert load_environment(name).spec.source == name


def test_an_unknown_name_lists_the_known_and_the_close():
    with pytest.raises(
        ConfigError, match=r"unknown environment 'numberguess'; did you mean 'number_guess'\? known ones are arithmetic"
    ):
        load_environment("numberguess")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"there is no file .*absent\.py"):
        load_environment(str(tmp_path / "absent.py"))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("x = 1\n1 / 0\n", "line 2, ZeroDivisionError: division by zero"),
        ("def f(:\n", "line 1, SyntaxError"),
        ("x = 1\n", "holds no environment"),
        (
            "from tinker_actors.environments import Environment\nclass Half(Environment):\n"
            "    def reset(self, seed): return ''\n",
            "Half in .* lacks step",
        ),
    ],
)
def test_a_file_that_cannot_be_used_says_why_in_one_line(write, text, named):
    with pytest.raises(ConfigError, match=named) as caught:
        load_environment(str(write(text)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"topp": 3}, r"no option 'topp'; did you mean 'top'\? \(its options are top, scale, strict\)"),
        ({"top": "3"}, r"option 'top' of environment 'my_env' is '3' \(str\); int is needed"),
        ({"top": True}, r"is True \(bool\); int is needed"),
        ({"strict": 1}, r"is 1 \(int\); bool is needed"),
    ],
)
def test_options_are_checked_against_the_constructor(write, options, named):
    with pytest.raises(ConfigError, match=named):
        load_environment(str(write(SUM)), **options)


def test_a_whole_number_is_a_float_and_a_missing_option_is_named(write):
    file = write(SUM)
    load_environment(str(file), scale=2)
    needy = write(SUM.replace("top: int = 10", "top: int"), "needy.py")
    with pytest.raises(ConfigError, match="environment 'needy' needs the option 'top'"):
        load_environment(str(needy))


def test_an_environment_without_constructor_takes_no_option(write):
    bare = SUM.replace("    def __init__(self, top: int = 10, scale: float = 1.0, strict: bool = False):\n", "")
    file = write(bare.replace("        self.top = top\n", ""), "bare.py")
    with pytest.raises(ConfigError, match=r"no option 'top' \(its options are none\)"):
        load_environment(str(file), top=1)


def test_the_example_of_the_documentation_is_a_whole_file(write):
    page = Path(__file__).parents[2] / "docs" / "environments.md"
    example = page.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    environment = load_environment(str(write(example, "sum.py")))()
    a, b = environment.reset(3).removesuffix("=").split("+")
    assert environment.step(str(int(a) + int(b))).reward == 1.0


def test_these_rooms_load_neither_torch_nor_transformers():
    code = (
        "import sys; import tinker_actors.environments, tinker_actors.coordinator; "
        "from tinker_actors.rollouts import RolloutWorker, collect, plan_groups, transcript; "
        "from tinker_actors.environments import load_environment; load_environment('last_word'); "
        "print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
