"""`Mesh.test` and the pytest plugin."""

# ruff: noqa: PT012 - what raises is the end of the block

import asyncio
import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest
from zoo import Counter, Fragile, Log, Parent

from tinker_actors.actors import ActorDiedError, Mesh, RestartPolicy


@pytest.mark.parametrize("nodes", [1, 2])
async def test_a_tidy_test_passes(nodes: int) -> None:
    async with Mesh.test(nodes=nodes) as mesh:
        counter = await mesh.spawn(Counter)
        counter.tell.add(1)
        fragile = await mesh.spawn(Fragile, restart=RestartPolicy.on_failure(backoff=0.0))
        with pytest.raises(ActorDiedError):
            await fragile.breaks()
        assert await fragile.add(1) == 1


@pytest.mark.parametrize("nodes", [1, 2])
async def test_a_busy_actor_at_the_end_is_a_leak(nodes: int) -> None:
    with pytest.raises(AssertionError, match=r"left unattended\n  leaks: busy was still busy"):
        async with Mesh.test(nodes=nodes, stop_timeout=0.1) as mesh:
            log = await mesh.spawn(Log, name="busy")
            hold = asyncio.ensure_future(log.hold())
            await log.wait_for("hold begins")
    await asyncio.gather(hold, return_exceptions=True)


@pytest.mark.parametrize("nodes", [1, 2])
async def test_a_failure_that_nobody_hears_of_fails_the_test(nodes: int) -> None:
    with pytest.raises(AssertionError, match=r"failures: brittle: ActorFailure: broken for good"):
        async with Mesh.test(nodes=nodes) as mesh:
            fragile = await mesh.spawn(Fragile, name="brittle")
            with pytest.raises(ActorDiedError):
                await fragile.breaks()
    async with Mesh.test(nodes=nodes) as mesh:
        fragile = await mesh.spawn(Fragile)
        events = mesh.watch(fragile)
        with pytest.raises(ActorDiedError):
            await fragile.breaks()
        await anext(events)


async def test_of_an_escalated_failure_only_the_end_of_the_chain_counts() -> None:
    with pytest.raises(AssertionError) as caught:
        async with Mesh.test() as mesh:
            parent = await mesh.spawn(Parent, name="parent")
            events = mesh.watch(await parent.spawn(None, RestartPolicy.on_failure(max_restarts=0)))
            with pytest.raises(ActorDiedError):
                await parent.child_breaks()
            await anext(events)
    assert "failures: parent: ActorDiedError" in str(caught.value)
    assert "; " not in str(caught.value)


@pytest.mark.parametrize("nodes", [1, 2])
async def test_dead_letters_fail_the_test_wherever_they_are(nodes: int) -> None:
    with pytest.raises(AssertionError, match="dead_letters: 2 failed"):
        async with Mesh.test(nodes=nodes, allow=["failures"]) as mesh:
            for _ in range(2):
                (await mesh.spawn(Fragile)).tell.raises()


async def test_what_is_allowed_passes_and_what_is_unknown_is_refused() -> None:
    async with Mesh.test(allow=["failures", "dead_letters"]) as mesh:
        (await mesh.spawn(Fragile)).tell.raises()
    with pytest.raises(ValueError, match="dead_letter"):
        Mesh.test(allow=["dead_letter"])


async def test_the_tests_own_error_comes_first_with_the_findings_as_a_note() -> None:
    with pytest.raises(KeyError) as caught:
        async with Mesh.test(allow=["failures"]) as mesh:
            (await mesh.spawn(Fragile)).tell.raises()
            raise KeyError("of the test")
    assert any("dead_letters: 1 failed" in note for note in caught.value.__notes__)


TESTS = """
import sys
LOADED = {"zmq", "torch", "numpy", "msgpack"} & set(sys.modules)
import pytest
from tinker_actors.actors import Actor

def test_the_plugin_loads_nothing_heavy():
    assert LOADED == set()

class Adder(Actor):
    async def add(self, a, b):
        return a + b

async def test_plain(mesh):
    assert mesh.nodes == 1
    assert await (await mesh.spawn(Adder)).add(1, 2) == 3

@pytest.mark.mesh(nodes=2)
async def test_marked(mesh):
    adder = await mesh.spawn(Adder)
    assert (mesh.nodes, await adder.add(1, 2)) == (2, 3)

async def test_untidy(mesh):
    (await mesh.spawn(Adder)).tell.add(1)

@pytest.mark.mesh(allow=["failures", "dead_letters"])
async def test_allowed(mesh):
    (await mesh.spawn(Adder)).tell.add(1)
"""


@pytest.mark.parametrize("mode", ["auto", "strict"])
def test_the_mesh_fixture_runs_and_checks(tmp_path: Path, mode: str) -> None:
    text = TESTS if mode == "auto" else TESTS.replace("\nasync def", "\n@pytest.mark.asyncio\nasync def")
    (tmp_path / "test_it.py").write_text(text)
    plugins = ["-p", "pytest_asyncio.plugin", "-p", "tinker_actors.actors.pytest_plugin"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, "--strict-markers", f"--asyncio-mode={mode}", "-q", "-rA"],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert "5 passed, 1 error" in run.stdout, run.stdout + run.stderr
    assert "ERROR test_it.py::test_untidy - AssertionError: the test left unattended" in run.stdout


def test_the_plugin_is_installed_with_the_package() -> None:
    points = importlib.metadata.distribution("tinker-actors").entry_points.select(group="pytest11")
    assert [point.value for point in points] == ["tinker_actors.actors.pytest_plugin"]
