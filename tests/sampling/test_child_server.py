import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tinker_actors.sampling.backends.child_server import ChildServer

# a server with a child of its own, both of which take no notice of SIGTERM
SERVER = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if sys.argv[2:]:
    subprocess.Popen([sys.executable, sys.argv[0], sys.argv[1]])
with open(sys.argv[1], "w") as pipe:
    pipe.write(f"{os.getpid()}\\n")
time.sleep(600)
"""
OWNER = """
import asyncio, sys
from pathlib import Path
from tinker_actors.sampling.backends.child_server import ChildServer

async def main():
    server = ChildServer([sys.executable, *sys.argv[2:]], environment={}, log=Path(sys.argv[1]), grace=0.2)
    await server.start()
    await server.wait()

asyncio.run(main())
"""


def write(tmp_path):
    program, fifo = tmp_path / "server.py", tmp_path / "fifo"
    program.write_text(SERVER)
    os.mkfifo(fifo)
    return [str(program), str(fifo), "parent"], fifo, tmp_path / "log"


async def started(log):
    """The server's process and its child's, as they tell it."""
    return await asyncio.to_thread(_read, log)


def _read(fifo):
    with os.fdopen(os.open(fifo, os.O_RDWR)) as pipe:  # as a writer too, so that it doesn't end with one of them
        return [psutil.Process(int(pipe.readline())) for _ in range(2)]


def test_a_server_and_what_it_started_end_with_the_owner_however_that_ends(tmp_path):
    command, fifo, log = write(tmp_path)
    source = Path(__file__).resolve().parents[2] / "src"
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(log), *command], env={**os.environ, "PYTHONPATH": str(source)}
    )
    processes = _read(fifo)
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    gone, alive = psutil.wait_procs(processes, 20)
    assert (len(gone), alive) == (2, [])


async def test_a_server_that_ignores_being_asked_is_ended(tmp_path):
    command, fifo, log = write(tmp_path)
    server = ChildServer([sys.executable, *command], environment={}, log=log, grace=0.2)
    await server.start()
    processes = await started(fifo)
    assert server.running
    await server.stop()
    gone, alive = await asyncio.to_thread(psutil.wait_procs, processes, 20)
    assert (len(gone), alive) == (2, [])
    assert not server.running


async def test_what_a_dead_server_leaves_ends_too_and_its_end_is_written_down(tmp_path):
    command, fifo, log = write(tmp_path)
    server = ChildServer([sys.executable, *command], environment={"A": "b"}, log=log)
    await server.start()
    processes = await started(fifo)
    own = next(process for process in processes if "parent" in process.cmdline())
    assert own.environ()["A"] == "b"
    own.kill()
    await server.wait()
    gone, alive = await asyncio.to_thread(psutil.wait_procs, processes, 20)
    assert (len(gone), alive) == (2, [])
    assert "the server was killed by SIGKILL" in server.tail()


SHARING = """
import os, sys, time
from multiprocessing.shared_memory import SharedMemory
memory = SharedMemory(create=True, size=1 << 20)
with open(sys.argv[1], "w") as pipe:
    pipe.write(f"{memory.name} {os.getpid()}\\n")
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks for the segment where Linux has it")
@pytest.mark.parametrize("killed", [True, False])
async def test_shared_memory_of_a_server_that_is_killed_is_removed(tmp_path, killed):
    (tmp_path / "server.py").write_text(SHARING)
    os.mkfifo(tmp_path / "fifo")
    command = [sys.executable, str(tmp_path / "server.py"), str(tmp_path / "fifo")]
    server = ChildServer(command, environment={}, log=tmp_path / "log", grace=0.2)
    await server.start()
    name, pid = (await asyncio.to_thread((tmp_path / "fifo").read_text)).split()
    segment = Path("/dev/shm") / name
    assert segment.exists()
    if killed:
        os.kill(int(pid), signal.SIGKILL)
        await server.wait()
    else:
        await server.stop()
    assert not segment.exists()
