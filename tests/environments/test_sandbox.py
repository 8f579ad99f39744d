"""The sandbox for Python code: what programs that try to get out, or to take too much, come to."""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tinker_actors.coordinator import run_episode
from tinker_actors.data import Task
from tinker_actors.environments import ScriptedAgent
from tinker_actors.environments.tools import (
    PythonSandbox,
    SandboxLimits,
    ToolEnvironment,
    sandbox_child,
    sandbox_report,
)
from tinker_actors.errors import ConfigError, EpisodeError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is made of mechanisms of Linux")

ALL = ("namespaces", "landlock", "seccomp")
SMALL = SandboxLimits(seconds=20.0, memory_mb=256, processes=12, output_bytes=5_000, file_mb=1)

SHORT = replace(SMALL, seconds=1.5)


@pytest.fixture
async def sandbox():
    made = PythonSandbox(SMALL)
    yield made
    await made.close()


def only(*mechanisms, limits=SMALL):
    """A sandbox of these mechanisms alone."""
    return PythonSandbox(limits, require=(), without=[name for name in ALL if name not in mechanisms])


def left_in(folder):
    """Processes of a sandbox that still live; their environment tells whose they are."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("HOME") == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


async def test_code_runs_and_its_files_stay_until_the_end(sandbox):
    result = await sandbox.run("print(1 + 1)\nopen('kept', 'w').write('text')")
    assert (result.text, result.code) == ("2", 0)
    assert (await sandbox.run("import sys; print(open('kept').read(), len(sys.argv))")).text == "text 1"
    failed = await sandbox.run("print('before'); 1 / 0")
    assert failed.code == 1
    assert failed.text.startswith("before\nTraceback")
    assert failed.text.endswith("ZeroDivisionError: division by zero\n[exit code 1]")
    assert (await sandbox.run("import os; os.kill(os.getpid(), 9)")).code == 137


async def test_the_environment_says_nothing_of_the_caller(sandbox, monkeypatch):
    monkeypatch.setenv("SECRET", "s3cret")
    shown = (await sandbox.run("import os; print(sorted(os.environ))")).text
    assert "SECRET" not in shown
    assert "HOME" in shown


@pytest.mark.parametrize("mechanisms", [ALL, ("namespaces",), ("landlock",)])
async def test_files_outside_the_folder_are_out_of_reach(tmp_path, mechanisms):
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    tmp_path.chmod(0o755)
    sandbox = only(*mechanisms)
    try:
        code = f"""
import os
def attempt(function):
    try:
        print("did", function())
    except OSError as error:
        print("refused")
attempt(lambda: open({str(secret)!r}).read())
attempt(lambda: open({str(secret.parent / "new")!r}, "w").write("x"))
attempt(lambda: os.unlink({str(secret)!r}))
attempt(lambda: os.symlink({str(secret)!r}, "link") or open("link").read())
attempt(lambda: open("/etc/passwd").read())
attempt(lambda: os.listdir("/proc/{os.getpid()}"))
attempt(lambda: os.listdir("/var"))
attempt(lambda: open("/usr/new", "w"))
attempt(lambda: os.chroot("."))
"""
        assert (await sandbox.run(code)).text.split("\n") == ["refused"] * 9
        assert secret.read_text() == "s3cret"
    finally:
        await sandbox.close()


@pytest.mark.parametrize("mechanisms", [ALL, ("namespaces",), ("seccomp",)])
async def test_the_network_is_out_of_reach(tmp_path, mechanisms):
    sandbox = only(*mechanisms)
    path = tmp_path / "socket"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        local.bind(str(path))
        local.listen()
        code = f"""
import socket
for kind, address in (
    (socket.AF_INET, ("127.0.0.1", {server.getsockname()[1]})), (socket.AF_UNIX, {str(path)!r}),
):
    try:
        with socket.socket(kind) as link:
            link.settimeout(1)
            link.connect(address)
        print("connected")
    except OSError:
        print("refused")
"""
        try:
            assert (await sandbox.run(code)).text == "refused\nrefused"
        finally:
            await sandbox.close()


async def test_a_fork_bomb_stays_small_and_ends(sandbox):
    short = only(*ALL, limits=SHORT)
    try:
        bomb = "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass"
        assert (await short.run(bomb)).limit == "time"
        assert left_in(short.folder) == []
    finally:
        await short.close()
    if sandbox_report().processes:
        counted = "import os\nn = 0\ntry:\n    while os.fork():\n        n += 1\nexcept OSError:\n    print(n)"
        counted += "\nelse:\n    import time\n    time.sleep(60)"
        assert 0 < int((await sandbox.run(counted)).text) <= SMALL.processes


async def test_a_memory_bomb_fails_in_its_own_process(sandbox):
    result = await sandbox.run("x = []\nwhile True:\n    x.append(bytearray(1 << 24))")
    assert "MemoryError" in result.text


async def test_output_without_end_is_cut_and_the_code_ended(sandbox):
    result = await sandbox.run("while True:\n    print('x' * 100)")
    assert result.limit == "output"
    assert len(result.output) == SMALL.output_bytes
    assert left_in(sandbox.folder) == []


async def test_a_large_file_is_refused(sandbox):
    result = await sandbox.run("open('large', 'wb').write(bytes(1 << 22))")
    assert result.code != 0
    assert (sandbox.folder / "large").stat().st_size <= 1 << 20


@pytest.mark.parametrize("mechanisms", [ALL, ("landlock", "seccomp")])
async def test_code_that_is_out_of_time_ends_whatever_it_ignores(mechanisms):
    sandbox = only(*mechanisms, limits=replace(SMALL, seconds=5.0))  # it is to have begun
    try:
        code = "import signal, time\nfor n in range(1, 65):\n    try:\n        signal.signal(n, signal.SIG_IGN)\n"
        code += (
            "    except (OSError, ValueError):\n        pass\nprint('on', flush=True)\nwhile True:\n    time.sleep(1)"
        )
        result = await sandbox.run(code)
        assert result.text == "on\n[ended: out of time]"
        assert left_in(sandbox.folder) == []
    finally:
        await sandbox.close()


LINGERS = """
import os, sys, time
for _ in range(3):
    if not os.fork():
        os.setsid()
        if not os.fork():
            os.close(0), os.close(1), os.close(2)
            time.sleep(600)
        os._exit(0)
print("gone")
"""


@pytest.mark.skipif(os.geteuid() != 0 or not Path("/usr/bin/python3").exists(), reason="needs root, to become another")
@pytest.mark.parametrize("namespaces", [("mount", "pid", "net"), ()])
def test_a_user_without_privileges_is_confined_too(tmp_path, namespaces):
    for folder in (tmp_path, *tmp_path.parents):
        if not folder.stat().st_mode & 0o001:  # those that pytest made
            folder.chmod(0o755)
    for name in ("work", "root"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o777)
    (tmp_path / "child.py").write_text(Path(sandbox_child.__file__).read_text())
    (tmp_path / "work" / "main.py").write_text(PROBE)
    told, status = os.pipe()
    config = {
        "parent": os.getpid(),
        "folder": str(tmp_path / "work"),
        "root": str(tmp_path / "root"),
        "uid": None,
        "readable": ["/usr", "/bin", "/lib", "/lib64"],
        "devices": [],
        "namespaces": namespaces,
        "landlock": not namespaces,
        "seccomp": not namespaces,
        "limits": {"RLIMIT_NPROC": 20},
        "program": ["/usr/bin/python3", "main.py"],
        "env": {},
    }
    done = subprocess.run(
        ["/usr/bin/python3", "-I", str(tmp_path / "child.py"), json.dumps(config), str(status)],
        user=65534,
        group=65534,
        extra_groups=[],
        pass_fds=(status,),
        stdout=subprocess.PIPE,
        timeout=250,
        check=False,
    )
    os.close(status)
    with os.fdopen(told) as pipe:
        applied = json.loads(pipe.read())
    if not (applied["root"] or applied["landlock"]):
        pytest.skip("this machine gives users without privileges neither namespaces nor Landlock")
    assert done.stdout.decode().split() == ["written", "refused", "refused", "refused", "65534"]


PROBE = """
import os, socket
def attempt(function):
    try:
        function()
        print("did")
    except OSError:
        print("refused")
open("new", "w").write("x")
print("written")
attempt(lambda: open("/etc/passwd"))
attempt(lambda: open("../child.py"))
attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(("127.0.0.1", 9)))
print(os.getuid())
"""


@pytest.mark.parametrize("mechanisms", [ALL, ("landlock", "seccomp")])
async def test_children_that_detach_end_with_their_run(mechanisms):
    sandbox = only(*mechanisms)
    try:
        assert (await sandbox.run(LINGERS)).text == "gone"
        assert left_in(sandbox.folder) == []
    finally:
        await sandbox.close()


async def test_nobody_else_can_be_signalled_or_seen(sandbox):
    code = (
        f"import os\ntry:\n    os.kill({os.getpid()}, 0)\n    print('reached')\nexcept OSError:\n    print('refused')"
    )
    assert (await sandbox.run(code)).text == "refused"


async def test_a_cancelled_run_leaves_nothing(sandbox):
    before = psutil.Process().children(recursive=True)
    begun = sandbox.folder / "begun"
    os.mkfifo(begun)
    begun.chmod(0o666)
    run = asyncio.create_task(sandbox.run("open('begun', 'w').close()\nimport time\ntime.sleep(60)"))
    await asyncio.to_thread(begun.read_text)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert left_in(sandbox.folder) == []
    assert psutil.Process().children(recursive=True) == before
    assert (await sandbox.run("print('again')")).text == "again"


KILLED = """
import asyncio
import os
from tinker_actors.environments.tools import PythonSandbox

async def main():
    sandbox = PythonSandbox()
    os.mkfifo(sandbox.folder / "begun")
    os.chmod(sandbox.folder / "begun", 0o666)
    print(sandbox.folder, flush=True)
    await sandbox.run("open('begun', 'w').close()\\nimport time\\ntime.sleep(60)")

asyncio.run(main())
"""


async def test_code_ends_with_the_process_that_runs_it():
    owner = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, stdout=asyncio.subprocess.PIPE)
    folder = Path((await owner.stdout.readline()).decode().strip())
    try:
        await asyncio.to_thread((folder / "begun").read_text)  # a pipe: as soon as the code has opened and closed it
        running = left_in(folder)
        owner.kill()
        await owner.wait()
        _, alive = await asyncio.to_thread(psutil.wait_procs, running, 10)
        assert running
        assert not alive
    finally:
        shutil.rmtree(folder.parent)


async def test_no_more_code_runs_at_a_time_than_there_are_cores():
    cores = len(os.sched_getaffinity(0))
    sandboxes = [PythonSandbox(SMALL) for _ in range(2 * cores + 1)]
    try:
        code = "import time\nprint(time.monotonic())\ntime.sleep(0.2)\nprint(time.monotonic())"
        results = await asyncio.gather(*(each.run(code) for each in sandboxes))
    finally:
        for each in sandboxes:
            await each.close()
    spans = [tuple(map(float, result.text.split())) for result in results]
    assert max(sum(start <= at < end for start, end in spans) for at, _ in spans) <= cores


async def test_code_can_not_replace_the_next_program(sandbox):
    assert "Error" in (await sandbox.run("open(__file__, 'w').write('1')")).text
    assert "Error" in (await sandbox.run("import os\nos.rename(os.path.dirname(__file__), 'x')")).text
    assert (await sandbox.run("open('module.py', 'w').write('x = 3')")).code == 0
    assert (await sandbox.run("import module\nprint(module.x)")).text == "3"


async def test_closing_removes_the_folder():
    sandbox = PythonSandbox(SMALL)
    await sandbox.run("import os\nos.makedirs('a/b')\nopen('a/b/c', 'w')\nos.chmod('a', 0)")
    base = sandbox.folder.parent
    await sandbox.close()
    await sandbox.close()
    assert not base.exists()
    with pytest.raises(EpisodeError, match="closed"):
        await sandbox.run("1")


def test_what_is_not_guarded_is_said_and_refused_where_required():
    report = sandbox_report(ALL)
    assert (report.network, report.files) == ((), ())
    with pytest.raises(ConfigError, match="network, files not guarded"):
        PythonSandbox(without=ALL)
    with pytest.raises(ConfigError, match="memory_mb of a sandbox is 0"):
        SandboxLimits(memory_mb=0)


class Coding(ToolEnvironment):
    tool_format = "json"

    def tools(self):
        self.sandbox = PythonSandbox(SMALL)
        return [self.sandbox.tool]

    def begin(self, seed):
        return "6*7="

    def answer(self, text):
        return float(text == "42")


async def test_an_episode_with_code_goes_on_after_an_error_and_leaves_no_folder():
    environment, seen = Coding(), []
    said = iter(
        [
            '{"name": "python", "parameters": {"code": "1/0"}}',
            '{"name": "python", "parameters": {"code": "print(6*7)"}}',
        ]
    )

    def act(messages):
        seen.append(messages[0].content)
        return next(said, "42")

    episode = await run_episode(environment, {"agent": ScriptedAgent(act)}, task=Task(environment="c", seed=0), id="e")
    assert seen[1].startswith("error: Traceback")
    assert seen[2] == "42"
    assert episode.metrics == {"tool_calls": 2.0, "tool_errors": 1.0}
    assert not environment.sandbox.folder.parent.exists()
