"""A task server's process as its scheduler sees it: started, watched, stopped, and gone when the scheduler is."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence

from tinker_actors.actors.exits import describe_exit, watch_exit
from tinker_actors.scheduler.job_folder import JobFolder


class TaskChild:
    """One attempt of a job.

    Its standard input is a pipe that ends with the scheduler; it inherits the lock of the job's folder; and it gets one
    more argument, the number of a descriptor to which it writes a byte once the job has really begun.

    Args:
        loop: On which everything is called.
        job: The job's id.
        attempt: The number of the attempt.
        command: Program and arguments.
        directory: Where it works.
        env: Environment variables besides this process's own.
        folder: The job's.
        lock: A descriptor that holds the folder's lock; closed here.
        on_ready: Called with this object when the job has begun.
        on_exit: Called with this object once the process has ended; never before `on_ready` if it was ready.

    Raises:
        OSError: The process can't be started, or not be watched; then it has been ended.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        job: str,
        attempt: int,
        *,
        command: Sequence[str],
        directory: str,
        env: Mapping[str, str],
        folder: JobFolder,
        lock: int,
        on_ready: Callable[[TaskChild], None],
        on_exit: Callable[[TaskChild], None],
    ) -> None:
        self.job = job
        self.attempt = attempt
        self.preempted = False
        self.stopping = False
        self.excess: str | None = None
        self.ended = loop.create_future()
        self._loop = loop
        self._on_ready = on_ready
        self._on_exit = on_exit
        self._killer: asyncio.TimerHandle | None = None
        try:
            self._ready, told = os.pipe()
        except OSError:  # no descriptors are left: the next attempt is to find the lock free
            os.close(lock)
            raise
        os.set_blocking(self._ready, False)
        try:
            with folder.log.open("ab") as output:
                self._popen = subprocess.Popen(
                    [*command, str(told)],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **env},
                    cwd=directory,
                    pass_fds=(told, lock),
                    process_group=0,
                )
        except BaseException:  # interrupted too: nobody will read the pipe
            os.close(self._ready)
            raise
        finally:
            os.close(told)
            os.close(lock)
        self.pid = self._popen.pid
        try:
            loop.add_reader(self._ready, self._told)
            self._unwatch = watch_exit(loop, self._popen, self._exited)
        except BaseException:  # nobody would see it end
            self.kill()
            self._popen.wait()
            self._close_pipes()
            raise

    @property
    def code(self) -> int | None:
        """The exit status, negative for a signal; None while it lives."""
        return self._popen.returncode

    def how_it_ended(self) -> str:
        """In words."""
        return describe_exit(self.code)

    def preempt(self, patience: float, grace: float) -> None:
        """Ask it to save its present step and to end; `stop` it if it hasn't after `patience` seconds."""
        if self.preempted or self.stopping or self._popen.returncode is not None:
            return
        self.preempted = True
        with contextlib.suppress(ProcessLookupError):
            self._popen.send_signal(signal.SIGUSR2)
        self._killer = self._loop.call_later(patience, self.stop, grace)

    @property
    def leaving(self) -> bool:
        """Whether it has been told to end."""
        return self.preempted or self.stopping

    def stop(self, grace: float) -> None:
        """Ask it to end, and kill it and its group if it hasn't after `grace` seconds. Again, and nothing changes."""
        if self.stopping or self._popen.returncode is not None:
            return
        self.stopping = True
        if self._killer is not None:
            self._killer.cancel()
        with contextlib.suppress(ProcessLookupError):
            self._popen.send_signal(signal.SIGTERM)
        self._killer = self._loop.call_later(grace, self.kill)

    def exceed(self, excess: str) -> None:
        """End it and its group now, because it holds more than it may."""
        self.excess = excess
        self.kill()

    def kill(self) -> None:
        """End it and its group now."""
        if self._popen.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def _told(self) -> None:
        if self._ready < 0:
            return
        try:
            word = os.read(self._ready, 1)
        except BlockingIOError:
            return
        self._loop.remove_reader(self._ready)
        os.close(self._ready)
        self._ready = -1
        if word:
            self._on_ready(self)

    def _exited(self) -> None:
        if self.ended.done():
            return
        self.kill()  # what it left behind in its group; before it is reaped its id can't mean anyone else
        if self._popen.poll() is None:
            return
        self._unwatch()
        if self._killer is not None:
            self._killer.cancel()
        self._told()
        self._close_pipes()
        self.ended.set_result(None)
        self._on_exit(self)

    def _close_pipes(self) -> None:
        if self._ready >= 0:  # something that it left elsewhere may still hold the other end
            self._loop.remove_reader(self._ready)
            os.close(self._ready)
            self._ready = -1
        assert self._popen.stdin is not None
        self._popen.stdin.close()
