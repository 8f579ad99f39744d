"""A mesh's window for other processes, and `tinker-actors ps` and `top`, which look through it."""

import asyncio
import contextlib
import dataclasses
import json
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from zoo import Counter

from tinker_actors.actors import Mesh
from tinker_actors.actors.attach import choose, fetch, running_meshes
from tinker_actors.actors.description import MeshDescription
from tinker_actors.actors.folder import PrivateFolder
from tinker_actors.errors import RunError


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@pytest.fixture
def own_tmp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder with a path short enough for sockets, so that no other program's meshes are seen."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr("tempfile.tempdir", folder)
        yield Path(folder)


async def ps(*arguments: str, folder: Path) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tinker_actors.cli", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=os.environ | {"TMPDIR": str(folder)},
    )
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode()


async def test_another_process_sees_the_mesh_until_it_ends(own_tmp: Path) -> None:
    async with Mesh(nodes=2, name="seen") as mesh:
        counter = await mesh.spawn(Counter, name="counter")
        await counter.add(1)
        (found,) = running_meshes()
        assert (found.name, found.pid, found.nodes) == ("seen", os.getpid(), 2)
        seen = await asyncio.to_thread(fetch, found)
        own = await mesh.describe()
        assert isinstance(seen, MeshDescription)
        assert seen.actor("counter").handled == 1
        assert [node.pid for node in seen.nodes] == [node.pid for node in own.nodes]
        assert dataclasses.asdict(seen).keys() == dataclasses.asdict(own).keys()
        assert stat.S_IMODE((found.folder / "window").stat().st_mode) == 0o600
    assert running_meshes() == []
    with pytest.raises(RunError, match="can't be reached"):
        fetch(found)


async def test_the_window_answers_one_request_only_and_survives_the_rest(own_tmp: Path) -> None:
    async with Mesh(name="seen") as mesh:
        (found,) = running_meshes()
        path = str(found.folder / "window")
        for request in (b"stop\n", b"x" * 100_000, b"", b"describe", os.urandom(50) + b"\n"):
            reader, writer = await asyncio.open_unix_connection(path)
            with contextlib.suppress(OSError):
                writer.write(request)
                writer.write_eof()
                assert await reader.read() == b""
            writer.close()
        idle = [await asyncio.open_unix_connection(path) for _ in range(40)]
        for _, writer in idle:
            writer.close()
        await until(lambda: len(mesh._window._tasks) == 0)  # type: ignore[union-attr]
        seen = await asyncio.to_thread(fetch, found)
        assert seen.name == "seen"


async def test_meshes_are_chosen_by_name_or_pid_and_listed_otherwise(own_tmp: Path) -> None:
    with pytest.raises(RunError, match="no mesh of this user"):
        choose(None)
    async with Mesh(name="one"):
        assert choose(None).name == "one"
        assert choose(str(os.getpid())).name == "one"
        async with Mesh(name="two"), Mesh(observe=False, name="hidden"):
            assert choose("two").name == "two"
            assert [mesh.name for mesh in running_meshes()] == ["one", "two"]
            for which, text in ((None, "several"), (str(os.getpid()), "several"), ("hidden", "no mesh is called")):
                with pytest.raises(RunError, match=text):
                    choose(which)


async def test_folders_of_others_and_of_the_dead_are_passed_over(own_tmp: Path) -> None:
    record = {"name": "stale", "pid": 1, "nodes": 1, "started": 0.0, "command": []}
    for name, mode, text in (
        ("stale", 0o700, json.dumps(record)),
        ("open", 0o755, json.dumps(record)),
        ("broken", 0o700, "{"),
        ("odd", 0o700, "[]"),
        ("empty", 0o700, ""),
    ):
        folder = own_tmp / f"tinker-actors-{name}"
        folder.mkdir(mode=mode)
        (folder / "mesh.json").write_text(text)
    async with Mesh(name="alive"):
        assert [mesh.name for mesh in running_meshes()] == ["alive"]


async def test_ps_prints_a_table_and_json_and_top_draws(own_tmp: Path) -> None:
    async with Mesh(nodes=2, name="shown") as mesh:
        counter = await mesh.spawn(Counter, name="counter")
        await counter.add(1)
        code, table = await ps("ps", folder=own_tmp)
        assert code == 0
        assert table.startswith(f"shown (pid {os.getpid()})")
        row = next(line.split() for line in table.splitlines() if line.startswith("counter"))
        assert row[:6] == ["counter", "Counter", "1", "running", "0/1024", "1"]
        code, text = await ps("ps", "shown", "--json", folder=own_tmp)
        (described,) = json.loads(text)
        assert code == 0
        assert [actor["name"] for actor in described["actors"]] == ["counter"]
        code, screen = await ps("top", "--count", "2", "--interval", "0.1", folder=own_tmp)
        assert code == 0
        assert "counter" in screen
        async with Mesh(name="second"):
            code, text = await ps("ps", folder=own_tmp)
            assert code == 0
            assert "shown" in text
            assert "second" in text
            code, text = await ps("top", folder=own_tmp)
            assert code == 2
            assert "several meshes" in text


async def test_top_ends_with_its_mesh(own_tmp: Path) -> None:
    mesh = Mesh(name="brief")
    async with mesh:
        top = asyncio.ensure_future(ps("top", "--interval", "0.05", folder=own_tmp))
        await until(lambda: mesh._window is not None and bool(mesh._window._tasks))
    code, screen = await top
    assert code in (0, 2)
    assert "brief" in screen


async def test_a_mesh_works_where_no_folder_can_be_made(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> None:
        raise OSError("read-only file system")

    monkeypatch.setattr("tinker_actors.actors.mesh.PrivateFolder", refuse)
    async with Mesh() as mesh:
        assert await (await mesh.spawn(Counter)).add(1) == 1
        assert mesh.folder is None
    assert "read-only" in caplog.text


def test_a_description_of_a_blocked_mesh_is_refused_in_time(own_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tinker_actors.actors.attach.PATIENCE", 0.3)
    program = (
        "import asyncio, time\nfrom tinker_actors.actors import Mesh\n"
        "async def main():\n  async with Mesh(name='stuck', blocked_loop=None):\n"
        "    print('up', flush=True)\n    time.sleep(60)\n"
        "asyncio.run(main())"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, env=os.environ | {"TMPDIR": str(own_tmp)}
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        with pytest.raises(RunError, match="may be blocked"):
            fetch(choose("stuck"))
    finally:
        process.kill()
        process.communicate()


def test_a_new_mesh_removes_the_folders_of_the_dead_and_no_others(
    own_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tinker_actors.actors.folder.YOUNG", 0.0)
    living, dead = PrivateFolder(), PrivateFolder()
    os.close(dead._lock)
    new = PrivateFolder()
    assert living.path.exists()
    assert not dead.path.exists()
    for each in (living, new):
        each.remove()
