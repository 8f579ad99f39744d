"""Whole programs: how they start children, and that they leave nothing behind however they end."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from tinker_actors.actors import Mesh, folder


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose path leaves room for that of a socket."""
    return tmp_path_factory.mktemp("p")


ACTOR = """
import asyncio, os, sys
from dataclasses import dataclass
from tinker_actors.actors import Actor, Mesh, wire

@wire
@dataclass(frozen=True)
class Pair:
    a: int
    b: tuple

class Adder(Actor):
    async def add(self, a, b):
        return Pair(a + b, (os.getpid(),))
"""
MAIN = """
async def main():
    async with Mesh(nodes=2) as mesh:
        adder = await mesh.spawn(Adder)
        pair = await adder.add(1, 2)
        assert type(pair) is Pair and pair.b[0] == mesh.pids[1] != os.getpid()
        print(pair.a)
"""


def run(*args: str, code: str | None = None, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *args], input=code, cwd=cwd, capture_output=True, text=True, timeout=250, check=False
    )


@pytest.mark.parametrize("ending", ["asyncio.run(main())", 'if __name__ == "__main__":\n    asyncio.run(main())'])
def test_a_scripts_own_actors_run_in_a_child_with_and_without_a_main_guard(tmp_path: Path, ending: str) -> None:
    (tmp_path / "script.py").write_text(f"{ACTOR}{MAIN}\n{ending}\n")
    result = run("script.py", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (0, "3\n"), result.stderr


def test_a_module_run_with_m_works(tmp_path: Path) -> None:
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "prog.py").write_text(f"{ACTOR}{MAIN}\nasyncio.run(main())\n")
    result = run("-m", "pack.prog", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (0, "3\n"), result.stderr


@pytest.mark.parametrize("how", ["-c", "stdin"])
def test_an_importable_actor_runs_from_a_session_without_a_file(tmp_path: Path, how: str) -> None:
    (tmp_path / "mine.py").write_text(ACTOR)
    code = (
        f"import asyncio, os\nfrom tinker_actors.actors import Mesh\nfrom mine import *\n{MAIN}\nasyncio.run(main())\n"
    )
    code = code.replace("\nfrom mine import *", "\nimport sys; sys.path.insert(0, '.')\nfrom mine import *")
    result = run("-c", code, cwd=tmp_path) if how == "-c" else run("-", code=code, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (0, "3\n"), result.stderr


def test_an_actor_defined_in_a_session_says_why_a_child_can_not_have_it(tmp_path: Path) -> None:
    result = run("-c", f"{ACTOR}{MAIN}\nasyncio.run(main())\n", cwd=tmp_path)
    assert result.returncode == 1
    assert "interactive session or with -c" in result.stderr


def test_a_class_from_a_file_loaded_by_path_runs_in_a_child(tmp_path: Path) -> None:
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "thing.py").write_text(ACTOR)
    (tmp_path / "script.py").write_text(
        textwrap.dedent("""
        import asyncio, importlib.util, os, sys
        from tinker_actors.actors import Mesh
        spec = importlib.util.spec_from_file_location("loaded_thing", "odd/thing.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules["loaded_thing"] = module
        spec.loader.exec_module(module)
        Adder, Pair = module.Adder, module.Pair
        """)
        + f"{MAIN}\nasyncio.run(main())\n"
    )
    result = run("script.py", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (0, "3\n"), result.stderr


BUSY = """
class Sleeper(Actor):
    async def nap(self):
        import time
        time.sleep(60)

async def main():
    async with Mesh(nodes=3, stop_timeout=0.5) as mesh:
        sleepers = [await mesh.spawn(Sleeper, node=i) for i in (1, 2)]
        naps = [asyncio.create_task(s.nap()) for s in sleepers]
        print(*mesh.pids.values(), flush=True)
        await asyncio.gather(*naps)

if __name__ == "__main__":
    import signal
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell are born ignoring it
    asyncio.run(main())
"""


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
async def test_nothing_outlives_the_program(monkeypatch: pytest.MonkeyPatch, blow: signal.Signals) -> None:
    # pytest's own folders can be too long for sockets, and the mesh would then make its folder elsewhere
    with tempfile.TemporaryDirectory(prefix="ta-", dir="/tmp") as short:
        await _outlives(Path(short), monkeypatch, blow)


async def _outlives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blow: signal.Signals) -> None:
    (tmp_path / "script.py").write_text(ACTOR + BUSY)
    process = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        assert process.stdout is not None
        line = await asyncio.to_thread(process.stdout.readline)
        children = [int(pid) for pid in line.split()]
        assert len(children) == 2
        folders = _folders(tmp_path)
        assert len(folders) == 1
        process.send_signal(blow)
        end = time.monotonic() + 60
        try:
            while any(_alive(pid) for pid in [*children, process.pid]):
                process.poll()
                assert time.monotonic() < end, "a process is left after a minute"
                await asyncio.sleep(0.01)
        finally:
            process.kill()
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path))
        patch.setattr(folder, "YOUNG", 0.0)
        async with Mesh(nodes=2) as mesh:
            assert _folders(tmp_path) == [mesh.folder]
    assert not _folders(tmp_path)


def _folders(parent: Path) -> list[Path]:
    return list(parent.glob("tinker-actors-*"))


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_children_ignore_the_terminals_ctrl_c(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        ACTOR
        + textwrap.dedent("""
        import signal
        async def main():
            async with Mesh(nodes=2) as mesh:
                adder = await mesh.spawn(Adder)
                os.kill(mesh.pids[1], signal.SIGINT)
                print((await adder.add(1, 2)).a)
        if __name__ == "__main__":
            asyncio.run(main())
        """)
    )
    result = run("script.py", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (0, "3\n"), result.stderr


def test_importing_the_package_loads_no_zeromq(tmp_path: Path) -> None:
    code = (
        "import sys; from tinker_actors.actors import Actor, ActorRef, RestartPolicy, wire, concurrent, deadline\n"
        "assert not {'zmq', 'torch', 'numpy'} & set(sys.modules), set(sys.modules)"
    )
    result = run("-c", code, cwd=tmp_path)
    assert result.returncode == 0, result.stderr


def test_the_counter_example_prints_what_its_readme_says(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "actors"
    result = run(str(example / "counter.py"), cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert f"```\n{result.stdout}```" in (example / "README.md").read_text()


@pytest.mark.skipif(sys.platform == "win32", reason="uvloop needs a POSIX system")
@pytest.mark.parametrize("nodes", [1, 2])
def test_the_mesh_runs_on_uvloop(nodes: int) -> None:
    uvloop = pytest.importorskip("uvloop")
    from zoo import Counter, Log

    from tinker_actors.actors import DeadlineExceeded

    async def program() -> None:
        async with Mesh(nodes=nodes) as mesh:
            counter, log = await mesh.spawn(Counter), await mesh.spawn(Log)
            assert await asyncio.gather(*(counter.add(1) for _ in range(200))) == list(range(1, 201))
            assert [i async for i in counter.stream.count_to(100)] == list(range(1, 101))
            with pytest.raises(DeadlineExceeded):
                await log.options(timeout=0.02).hold()
            if nodes > 1:
                events = mesh.watch(counter)
                os.kill(mesh.pids[1], signal.SIGKILL)
                await anext(events)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(program())
