"""Python code of a policy's, run where it can't get out, as far as the kernel allows: `PythonSandbox`."""

from __future__ import annotations

import asyncio
import functools
import json
import math
import os
import secrets
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from tinker_actors.environments.tools.tool import Tool, ToolError, tool
from tinker_actors.errors import ConfigError, EpisodeError

_CHILD = Path(__file__).with_name("sandbox_child.py")
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/alternatives")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_NAMESPACES = ("mount", "uts", "ipc", "pid", "net")
_GRACE = 5.0  # seconds to start, beyond the code's own time, and to end
_MIB = 1 << 20

Guard = Literal["network", "files", "lingering"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """What code may take.

    Attributes:
        seconds: Of the clock, and of the processor for each process.
        memory_mb: Address space of each process, in MiB.
        processes: Processes and threads at a time.
        output_bytes: Of standard output and error together; the code ends beyond it.
        file_mb: Size of each file that it writes, in MiB.
    """

    seconds: float = 10.0
    memory_mb: int = 1024
    processes: int = 32
    output_bytes: int = 20_000
    file_mb: int = 32

    def __post_init__(self) -> None:
        for name in ("seconds", "memory_mb", "processes", "output_bytes", "file_mb"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} of a sandbox is {getattr(self, name)}; a positive number is needed")


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxReport:
    """What confines code on this machine. An empty entry is not guarded.

    Attributes:
        network: What keeps it from the network.
        files: What keeps it from files outside its folder, those of Python and the system's programs excepted.
        lingering: What ends every process that it started.
        processes: What bounds how many there are.
        memory: What bounds the memory of each.
        note: Why the sandbox doesn't work at all, if so.
    """

    network: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    lingering: tuple[str, ...] = ()
    processes: tuple[str, ...] = ()
    memory: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeResult:
    """How code ended.

    Attributes:
        output: What it wrote, standard output and error as they came, up to the limit.
        code: Its exit code; 128 and the signal's number if a signal ended it.
        limit: The limit that ended it: "time", "output" or none.
    """

    output: str
    code: int
    limit: Literal["", "time", "output"] = ""

    @property
    def text(self) -> str:
        """What a policy reads."""
        ends = {"time": "[ended: out of time]", "output": "[ended: too much output]"}
        end = ends.get(self.limit) or (f"[exit code {self.code}]" if self.code else "")
        return "\n".join(part for part in (self.output.rstrip("\n"), end) if part)


class PythonSandbox:
    """A folder and the code that runs in it. Files stay from one run to the next; everything ends with `close`.

    Args:
        limits: Of each run.
        require: What must be guarded; code isn't run where the kernel doesn't allow that.
        without: Mechanisms to do without: "namespaces", "landlock", "seccomp".

    Raises:
        ConfigError: Something required is not guarded here; names it.
    """

    def __init__(
        self,
        limits: SandboxLimits | None = None,
        *,
        require: Sequence[Guard] = ("network", "files", "lingering"),
        without: Sequence[str] = (),
    ) -> None:
        self.limits = limits or SandboxLimits()
        self._without = tuple(sorted(without))
        report = sandbox_report(self._without)
        if missing := [guard for guard in require if not getattr(report, guard)]:
            raise ConfigError(
                f"code can't be confined here: {', '.join(missing)} not guarded{report.note and ': '}{report.note}; "
                "allow user namespaces or a kernel with Landlock, or require less"
            )
        self._base, self._user = _made_folder()
        self.folder = Path(self._base, "work")
        self._remove = weakref.finalize(self, shutil.rmtree, self._base, ignore_errors=True)
        self._turn = asyncio.Lock()

    @property
    def tool(self) -> Tool:
        """The sandbox as a tool named `python`, which it is closed with; code that fails gives an error."""

        async def python(code: str) -> str:
            """Run a Python program and read what it prints.

            Args:
                code: The program.
            """
            result = await self.run(code)
            if result.code or result.limit:
                raise ToolError(result.text)
            return result.text

        return replace(tool(python, seconds=math.inf), close=self.close)

    async def run(self, code: str) -> CodeResult:
        """Run code. Runs in one sandbox wait for each other, and no more run at a time than there are processor cores.

        Raises:
            EpisodeError: The sandbox is closed, or doesn't work.
        """
        async with self._turn:
            if not self._remove.alive:
                raise EpisodeError("the sandbox is closed")
            _write(self._base, code)
            async with _places():
                return await self._run()

    async def close(self) -> None:
        """Remove the folder; a second call does nothing."""
        async with self._turn:
            await asyncio.to_thread(self._remove)

    async def _run(self) -> CodeResult:
        told, status = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *_command(self._base, self._user, self.limits, self._without, status),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                pass_fds=(status,),
                start_new_session=True,
                cwd="/",
                env={},
            )
        except BaseException:  # cancelled too: nobody will read the pipe
            os.close(told)
            raise
        finally:
            os.close(status)
        try:
            output, limit = await self._output(process)
        finally:
            try:
                await _end(process)
            finally:  # cancelled meanwhile: the pipe is closed all the same
                applied = _read_status(told)
        if "error" in applied:
            raise EpisodeError(f"the sandbox doesn't work: {applied['error']}{output and ': '}{output}")
        return CodeResult(output=output, code=process.returncode or 0, limit=limit)

    async def _output(self, process: asyncio.subprocess.Process) -> tuple[str, Literal["", "time", "output"]]:
        stream, read, limit = process.stdout, bytearray(), ""
        assert stream is not None
        try:
            async with asyncio.timeout(self.limits.seconds + 0.5):
                while chunk := await stream.read(65536):
                    read += chunk
                    if len(read) > self.limits.output_bytes:
                        limit = "output"
                        break
                else:
                    await process.wait()
        except TimeoutError:
            limit = "time"
        return bytes(read[: self.limits.output_bytes]).decode("utf-8", "replace"), limit


_PLACES: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = weakref.WeakKeyDictionary()


def _places() -> asyncio.Semaphore:
    """For runs of this event loop: with more than there are cores, time limits would measure the machine."""
    loop = asyncio.get_running_loop()
    return _PLACES.setdefault(loop, asyncio.Semaphore(len(os.sched_getaffinity(0))))


def sandbox_report(without: tuple[str, ...] = ()) -> SandboxReport:
    """What confines code on this machine; found out by running some.

    Args:
        without: As in `PythonSandbox`.
    """
    return _report(tuple(without))


@functools.cache
def _report(without: tuple[str, ...]) -> SandboxReport:
    base, user = _made_folder()
    told, status = os.pipe()
    try:
        _write(base, "")
        command = _command(base, user, SandboxLimits(), without, status)
        done = subprocess.run(
            command, pass_fds=(status,), env={}, cwd="/", capture_output=True, timeout=30, check=False
        )
        os.close(status)
        status = -1
        applied = _read_status(told)
    except (OSError, subprocess.SubprocessError) as error:
        return SandboxReport(note=f"{type(error).__name__}: {error}")
    finally:
        if status >= 0:
            os.close(status)
            os.close(told)
        shutil.rmtree(base, ignore_errors=True)
    if done.returncode or "error" in applied or not applied:
        said = done.stderr.decode(errors="replace").strip()[-300:]
        return SandboxReport(note=str(applied.get("error") or said or f"exit code {done.returncode}"))
    return _described(applied)


def _described(applied: Mapping[str, Any]) -> SandboxReport:
    spaces, landlock = applied["namespaces"], applied["landlock"]

    def those(**names: bool) -> tuple[str, ...]:
        return tuple(name.replace("_", " ") for name, there in names.items() if there)

    return SandboxReport(
        network=those(network_namespace="net" in spaces, seccomp=applied["seccomp"]),
        files=those(mount_namespace=applied["root"], Landlock=landlock > 0),
        lingering=those(process_namespace="pid" in spaces, subreaper="pid" not in spaces),
        processes=those(RLIMIT_NPROC=applied["uid"] != 0),  # which root is exempt from
        memory=("RLIMIT_AS",),
    )


def _made_folder() -> tuple[str, int | None]:
    """A private folder with those of program, work and root in it; the user to run as, if root may choose."""
    base = os.path.realpath(tempfile.mkdtemp(prefix="tinker-actors-code-"))
    for name in ("code", "root", "work"):
        Path(base, name).mkdir()
    user = 60_000 + secrets.randbelow(5_000) if os.geteuid() == 0 else None
    Path(base, "work").chmod(0o777)  # within `base`, which is its owner's alone
    return base, user


def _write(base: str, code: str) -> None:
    Path(base, "code", "main.py").write_text(code, encoding="utf-8", errors="replace")


def _command(base: str, user: int | None, limits: SandboxLimits, without: Sequence[str], status: int) -> list[str]:
    folder = f"{base}/work"
    seconds = int(limits.seconds) + 1
    config = {
        "parent": os.getpid(),
        "folder": folder,
        "root": f"{base}/root",
        "uid": user,
        "readable": (*_readable(), f"{base}/code"),
        "devices": _DEVICES,
        "namespaces": () if "namespaces" in without else _NAMESPACES,
        "landlock": "landlock" not in without,
        "seccomp": "seccomp" not in without,
        "limits": {
            "RLIMIT_AS": limits.memory_mb * _MIB,
            "RLIMIT_CPU": seconds,
            "RLIMIT_NPROC": limits.processes,
            "RLIMIT_FSIZE": limits.file_mb * _MIB,
            "RLIMIT_NOFILE": 256,
            "RLIMIT_CORE": 0,
        },
        "program": [sys.executable, "-B", "-u", f"{base}/code/main.py"],
        "env": {
            "PATH": "/usr/bin:/bin",
            "HOME": folder,
            "PYTHONPATH": folder,
            "TMPDIR": folder,
            "LANG": "C.UTF-8",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        },
    }
    return [sys.executable, "-I", "-S", "-B", str(_CHILD), json.dumps(config), str(status)]


@functools.cache
def _readable() -> tuple[str, ...]:
    """The interpreter with its packages, and the system's programs and libraries."""
    paths = [*_SYSTEM, sys.base_prefix, sys.base_exec_prefix, sys.prefix, *sysconfig.get_paths().values()]
    found = [path for path in dict.fromkeys(paths) if os.path.lexists(path) and path != "/"]
    return tuple(path for path in found if not any(path.startswith(f"{other}/") for other in found))


def _read_status(told: int) -> dict[str, Any]:
    with os.fdopen(told, "rb") as pipe:
        os.set_blocking(pipe.fileno(), False)
        lines = (pipe.read() or b"").splitlines()
    return json.loads(lines[-1]) if lines else {}  # what went wrong in the end is said last


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the outer process, and with it everything behind it; bounded in time, whoever is cancelled meanwhile."""
    ending = asyncio.ensure_future(_ended(process))
    try:
        await asyncio.shield(ending)
    except asyncio.CancelledError:
        await asyncio.wait({ending})
        raise


async def _ended(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(_GRACE):
                await process.wait()
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
    with suppress(TimeoutError):
        async with asyncio.timeout(_GRACE):
            while process.stdout is not None and await process.stdout.read(65536):
                pass
