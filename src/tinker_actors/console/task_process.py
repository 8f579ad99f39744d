"""The program of a job's task server: `python -m tinker_actors.console.task_process FOLDER ATTEMPT READY`.

It runs the job of a folder, or takes it up where it stopped, and says at its end how it went. It ends with the
scheduler that started it: at the end of its standard input, as by SIGTERM. By SIGUSR2 it ends once the job has
saved its present step.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console

from tinker_actors.errors import ConfigError, DataError, ModelError, TinkerActorsError
from tinker_actors.scheduler.job_folder import JobFolder, Outcome, sign_lock
from tinker_actors.scheduler.stopping import StopRequest

PATIENCE = 4.0
"""Seconds that a stopped job has to clean up."""

STOPPED = 128 + signal.SIGTERM
"""Exit status of a job that was stopped; it says no more."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a job and leave with its exit status."""
    root, attempt, ready = sys.argv[1:] if arguments is None else arguments
    folder = JobFolder(Path(root))
    sign_lock(folder.lock)
    runner = asyncio.Runner()
    try:
        request = StopRequest()
        outcome = runner.run(_until_stopped(_job(folder, int(attempt), int(ready), request), request))
    except Exception as error:  # the boundary of the process: whatever it is, the scheduler is told
        hopeless = isinstance(error, ConfigError | DataError | ModelError)
        if hopeless:  # its text is written for whoever wrote the configuration
            sys.stderr.write(f"{error}\n")
        else:
            traceback.print_exc()
        kind = "" if isinstance(error, TinkerActorsError) else f"{type(error).__name__}: "
        outcome = Outcome(attempt=int(attempt), succeeded=False, detail=f"{kind}{error}", again=not hopeless)
    if outcome is None:
        _leave(STOPPED)
    folder.save_outcome(outcome)
    _leave(0 if outcome.succeeded else 1)


async def _job(folder: JobFolder, attempt: int, ready: int, request: StopRequest) -> Outcome:
    from tinker_actors.console.plain import PlainView
    from tinker_actors.scheduler.grant import granted, use_threads_of, within
    from tinker_actors.scheduler.jobs import check_job, run_job
    from tinker_actors.scheduler.loading import parse_config
    from tinker_actors.scheduler.run_folder import RunFolder

    run, grant = RunFolder(folder.run), granted()
    begun = run.config.is_file()
    if begun:
        config = run.load_config()
    else:
        shutil.rmtree(run.root, ignore_errors=True)  # of an attempt that was killed while it made the folder
        config = parse_config({**folder.load_request(), "output": str(run.root)}, source=f"job {folder.root.name}")
    check_job(config, run)
    bound = config if grant is None else within(config, grant)
    use_threads_of(config)
    if not begun:
        run = RunFolder.create(config)
    logging.basicConfig(filename=run.log, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    os.write(ready, b"1")
    os.close(ready)
    await run_job(bound, run, PlainView(Console()), request)
    return Outcome(attempt=attempt, succeeded=True)


async def _until_stopped(job: Coroutine[Any, Any, Outcome], request: StopRequest) -> Outcome | None:
    """A job's outcome; None if it was stopped before its end."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(job)
    stopped: list[bool] = []

    def stop() -> None:
        if not stopped:
            stopped.append(True)
            loop.call_later(PATIENCE, _leave, STOPPED)
            task.cancel()

    def read() -> None:
        if not os.read(0, 4096):  # the scheduler is gone
            loop.remove_reader(0)
            stop()

    loop.add_reader(0, read)
    loop.add_signal_handler(signal.SIGTERM, stop)
    loop.add_signal_handler(signal.SIGUSR2, request.ask)
    try:
        return await task
    except asyncio.CancelledError:
        if not stopped and not request.heeded:
            raise
        return None
    finally:
        with contextlib.suppress(ValueError):
            loop.remove_reader(0)


def _leave(code: int) -> NoReturn:
    """Leave without waiting for compute threads: all that is to be kept is on disk already."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
