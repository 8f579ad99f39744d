"""Deleting jobs that are over: what the store knows of one goes with its folder, or neither does.

The folder is renamed, then the rows go, then the files. A process that is killed between two of these leaves the
renamed folder, and the next scheduler ends what was begun.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import cast

from tinker_actors.errors import JobError, JobStateError, UnknownJobError
from tinker_actors.scheduler.job_records import Job
from tinker_actors.scheduler.job_store import JobStore
from tinker_actors.scheduler.states import JobState

logger = logging.getLogger(__name__)

_GONE = ".gone-"
_UNFINISHED = tuple(state for state in JobState if not state.is_over)


class Deletions:
    """Deletes the jobs of a store. Of one event loop, on which it is made.

    Args:
        store: The store.
        folder: Where the jobs' folders are.
    """

    def __init__(self, store: JobStore, folder: Path) -> None:
        self._store, self._folder = store, folder
        self._loop = asyncio.get_running_loop()
        self._under_way: set[asyncio.Future[None]] = set()

    def end_what_was_begun(self) -> None:
        """Delete what a former process was killed over."""
        for path in sorted(self._folder.glob(f"{_GONE}*")):
            with contextlib.suppress(UnknownJobError, JobStateError):  # it had got further; or the job was resumed
                self._store.delete(path.name.removeprefix(_GONE))
            self._remove(path)

    def delete(self, job: str) -> Job:
        """Delete a job that is over and that no other needs; its files go in the background.

        Returns:
            It as it stood last.

        Raises:
            JobStateError: It isn't over, or one that isn't over names files of it.
            JobError: Its folder can't be renamed, or the store not be written; nothing was deleted.
            UnknownJobError: There is none with this id.
        """
        self.check(job)
        folder, gone = self._folder / job, self._folder / f"{_GONE}{job}"
        kept = folder.exists()  # one that was never started has none
        try:
            if kept:
                folder.rename(gone)
                _fsync(self._folder)
            deleted = self._store.delete(job)
        except (OSError, JobError) as error:
            if gone.exists():
                gone.rename(folder)
            if isinstance(error, OSError):
                raise JobError(f"folder {folder} can't be deleted: {error.strerror or error}") from error
            raise
        if kept:
            self._remove(gone)
        return deleted

    def check(self, job: str) -> None:
        """Refuse to delete a job that isn't over or that another one needs; errors as of `delete`."""
        state = self._store.get(job).state
        if not state.is_over:
            raise JobStateError(f"job {job} is {state.value}; only one that is over can be deleted: cancel it first")
        if users := self.users_of(self._folder / job):
            raise JobStateError(f"job {job} is used by {', '.join(users)}, which isn't over; cancel that first")

    def users_of(self, path: Path, tenant: str | None = None) -> list[str]:
        """Ids of the jobs that aren't over and name a path, or something below it.

        Args:
            path: Absolute, without symbolic links.
            tenant: Whose jobs; everybody's if None.
        """
        jobs = self._store.jobs(*_UNFINISHED, tenant=tenant)
        return [job.id for job in jobs if any(_is_within(text, job.directory, path) for text in _texts(job.config))]

    def users_of_files(self, paths: Sequence[str]) -> dict[str, list[str]]:
        """For each of these absolute paths that a job names which isn't over, the ids of those jobs."""
        sought, found = frozenset(paths), dict[str, list[str]]()
        for job in self._store.jobs(*_UNFINISHED):
            named = {os.path.normpath(os.path.join(job.directory, text)) for text in _texts(job.config)}
            for path in named & sought:
                found.setdefault(path, []).append(job.id)
        return found

    async def cleared(self) -> None:
        """Wait until the files of what was deleted so far are gone."""
        if self._under_way:
            await asyncio.wait(self._under_way)

    def _remove(self, path: Path) -> None:
        done: asyncio.Future[None] = self._loop.create_future()
        self._under_way.add(done)

        def over() -> None:
            self._under_way.discard(done)
            done.set_result(None)

        def remove() -> None:
            try:
                shutil.rmtree(path)
            except OSError as error:  # the next scheduler tries again
                logger.warning("%s can't be removed: %s", path, error)
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(over)

        # no thread of the loop's own, which would keep the process from ending
        threading.Thread(target=remove, daemon=True, name=f"removal-{path.name}").start()


def _is_within(text: str, directory: str, path: Path) -> bool:
    named = os.path.normpath(os.path.join(directory, text))
    return named == str(path) or named.startswith(f"{path}/")


def _texts(value: object) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for entry in cast("Mapping[str, object]", value).values():
            yield from _texts(entry)
    elif isinstance(value, list | tuple):
        for entry in cast("list[object]", value):
            yield from _texts(entry)


def _fsync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # else a crash of the machine may undo the renaming, and keep a folder of no job
    finally:
        os.close(descriptor)
