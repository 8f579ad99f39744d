"""What all tests stand on: what is collected, what their processes inherit, what they leave out and close."""

import importlib.util
import os
import signal

import pytest
from tests import official_client

# no doctests of the rooms' conftest files, which all have one module name, or of programs of other environments
collect_ignore_glob = ["tests/*/conftest.py", "tests/gateway/cookbook/write_play.py"]

# The tests start hundreds of processes, and compiling the package takes longer than all else about starting one: what
# Python keeps by default is kept even where the environment says otherwise.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Set before torch is loaded, for the processes that tests start too: what they compute is tiny, and two threads that
# meet after each operation take longer than one, above all where other work has the processors as well.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What a shell starts in the background ignores Ctrl-C, and so would the processes that tests press it for.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A property that the machine holds up for a moment is none the less one, and each run tries the same examples:
# `--hypothesis-profile=default` draws others.
if importlib.util.find_spec("hypothesis") is not None:  # the environments of single libraries do without
    from hypothesis import HealthCheck, settings

    settings.register_profile("tests", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("tests")


@pytest.hookimpl(trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave out what needs weights that aren't there, and watch the connections that are closed with the module."""
    if item.get_closest_marker("model") is not None:
        from tinker_actors.models import smollm2

        if not smollm2.directory().is_dir():
            pytest.skip(f"{smollm2.NAME} is not fetched: run `tinker-actors models fetch {smollm2.NAME}`")
    if item.get_closest_marker("sdk") is not None:
        official_client.watch()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is None or nextitem.path != item.path:  # and so the module's fixtures have ended
        official_client.close_all()
