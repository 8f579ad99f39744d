"""Kills a process before each step that it takes on disk, and looks at what is left."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sqlite3
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

Work: TypeAlias = Callable[[Path], object]

_STEPS = frozenset(("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "fcntl.flock"))


def killed_before_each_step(root: Path, prepare: Work, work: Work, look: Work) -> int:
    """Do some work in a process again and again, each time killed one step later, until it gets through.

    Steps are changes of files' names, openings for writing, locks, and statements of SQLite.

    Args:
        root: An empty folder.
        prepare: Makes in a folder what the work begins with. All three are functions of a module.
        work: The work, in a copy of that folder.
        look: Looks at what is left there, and fails if something is wrong with it.

    Returns:
        How often it was killed.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:  # no other threads to fork
        return pool.submit(_all, root, prepare, work, look).result()


def _all(root: Path, prepare: Work, work: Work, look: Work) -> int:
    os.fsync = lambda descriptor: None  # what a process has written stays when it is killed
    begun, folder = root / "begun", root / "killed"
    begun.mkdir()
    prepare(begun)
    for step in count(1):
        shutil.copytree(begun, folder)
        killed = _killed(step, work, folder)
        try:
            look(folder)
        except BaseException as error:  # a failed assertion, above all, that is to say where
            error.add_note(f"killed before step {step}")
            raise
        if not killed:
            return step - 1
        shutil.rmtree(folder)
    raise AssertionError


def _killed(step: int, work: Work, folder: Path) -> bool:
    """Do the work in a process of its own; whether it was killed before the end."""
    child = os.fork()
    if not child:
        try:
            _kill_before(step)
            work(folder)
        except BaseException:  # a fork must not go on as if it were the test
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), f"step {step} of the work failed"
    return status != 0


def _kill_before(step: int) -> None:
    left = step

    def seen() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _STEPS or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            seen()

    def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = plain(*arguments, **options)
        connection.set_trace_callback(lambda _: seen())
        return connection

    plain, sqlite3.connect = sqlite3.connect, connect
    sys.addaudithook(hook)
