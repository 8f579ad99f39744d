"""Runs a folder's jobs: starts what can start, watches it, settles how it ended, and frees what it held exactly once.

All that happens, happens in turns of one event loop, none of which waits: a submission, the end of a process or a timer
leads to `tick`, which plans and starts. Nothing is polled.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from tinker_actors.errors import JobError, JobRefusedError, SchedulerFolderError
from tinker_actors.scheduler.grant import environment_of
from tinker_actors.scheduler.job_folder import JobFolder, try_lock
from tinker_actors.scheduler.job_records import Job, JobRequest
from tinker_actors.scheduler.job_store import JobStore
from tinker_actors.scheduler.memory_watch import MemoryWatches
from tinker_actors.scheduler.orphans import Orphans
from tinker_actors.scheduler.queue import Held, Reservation, Waiting, never_fits, plan
from tinker_actors.scheduler.resources import Allocation, Ledger, Resources
from tinker_actors.scheduler.scheduler_settings import SchedulerSettings
from tinker_actors.scheduler.states import JobState, Reason
from tinker_actors.scheduler.task_child import TaskChild
from tinker_actors.scheduler.verdict import judge

logger = logging.getLogger(__name__)

STORE_ERRORS = (JobError, sqlite3.Error)
"""What is raised where the store can't be read or written."""


def task_server_command(job: Job, folder: JobFolder) -> Sequence[str]:
    """The task server that runs a configuration's job."""
    return [sys.executable, "-m", "tinker_actors.console.task_process", str(folder.root), str(job.attempt)]


class Supervisor:
    """The jobs of a folder. Belongs to the event loop on which it is started.

    Args:
        root: The folder: holds the store and the jobs' folders. One supervisor at a time.
        capacity: All that jobs may hold.
        settings: How they are run.
        on_failure: Called once with the error if the store fails while nobody asks for anything. The supervisor starts
            nothing more then, and stops its processes; the next one finds what became of them.
        on_change: Called with every job that was added or has moved, once that is on disk.
    """

    def __init__(
        self,
        root: Path,
        capacity: Resources,
        *,
        settings: SchedulerSettings | None = None,
        on_failure: Callable[[Exception], None] | None = None,
        on_change: Callable[[Job], None] = lambda _: None,
    ) -> None:
        self._root = root.resolve()
        self.jobs = self._root / "jobs"
        self._settings = settings or SchedulerSettings()
        self._on_failure = on_failure
        self._on_change = on_change
        self.ledger = Ledger(capacity)
        self._children: dict[str, TaskChild] = {}
        self._watches = MemoryWatches()
        self._reservation: Reservation | None = None
        self._resting: dict[str, asyncio.TimerHandle] = {}
        self._waiters: dict[str, list[tuple[Collection[JobState], asyncio.Future[Job]]]] = {}
        self._closing = False
        self._closed = False

    def start(self) -> None:
        """Take up the folder: settle what a former supervisor left, and start what can start.

        Raises:
            SchedulerFolderError: Another supervisor has the folder.
            JobError: It can't be used.
        """
        self._loop = asyncio.get_running_loop()
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            lock = try_lock(self._root / "lock")
        except OSError as error:
            raise JobError(f"scheduler folder {self._root} can't be used: {error.strerror or error}") from error
        if lock is None:
            raise SchedulerFolderError(
                f"scheduler folder {self._root} is in use by another scheduler; give another folder"
            )
        self._lock = lock
        try:
            self.store = JobStore(self._root / "jobs.sqlite", on_change=self._on_change)
        except JobError:
            os.close(lock)
            raise
        self._orphans = Orphans(self._loop, self._settings.grace, self._settle_orphan)
        for job in self.store.jobs(JobState.STARTING, JobState.RUNNING, JobState.CANCELLING, outlines=True):
            self.ledger.restore(job.id, job.attempt, Allocation(amount=job.need, devices=job.devices))
            self._orphans.add(job, self.folder(job.id))
        self.tick()

    async def drain(self) -> None:
        """Start nothing more, and let running jobs save their present step and end; they are queued then."""
        self._closing = True
        children = list(self._children.values())
        for child in children:
            self._let_save(child)
        for child in children:
            await asyncio.shield(child.ended)

    async def stop(self) -> None:
        """Stop all processes, let their jobs be queued for the next supervisor, and give up the folder."""
        self._closing = True
        self._orphans.close()
        for timer in self._resting.values():
            timer.cancel()
        children = list(self._children.values())
        for child in children:
            child.stop(self._settings.grace)
        try:
            for child in children:
                await child.ended
        finally:
            self._closed = True
            self._watches.close()
            for child in children:
                child.kill()  # those left if this was cut short; the next supervisor settles them
            for job, waiters in self._waiters.items():
                for _, waiter in waiters:
                    if not waiter.done():
                        waiter.set_exception(
                            JobError(f"the scheduler stops before job {job} is over; ask the next one")
                        )
            self.store.close()
            os.close(self._lock)

    def folder(self, job: str) -> JobFolder:
        """A job's folder."""
        return JobFolder(self.jobs / job)

    @property
    def processes(self) -> dict[str, int]:
        """Process ids of the task servers, by job."""
        return {job: child.pid for job, child in self._children.items()}

    def submit(self, request: JobRequest) -> Job:
        """Take a job; it is in the store when this returns.

        Raises:
            JobRefusedError: It could never start.
        """
        if why := never_fits(request.need, request.tenant, self.ledger.capacity, self._settings.rules):
            raise JobRefusedError(f"job {request.name!r} can never run: {why}")
        job = self.store.add(request)
        self.tick()
        return self.store.get(job.id)

    def cancel(self, job: str) -> Job:
        """Stop a job, or take it out of the queue. One that is over stays as it is."""
        present = self.store.get(job)
        if present.state is JobState.QUEUED:
            self._move(job, JobState.CANCELLED, Reason.CANCEL_ASKED)
            self.tick()
        elif present.state.holds_resources:
            self._move(job, JobState.CANCELLING, Reason.CANCEL_ASKED)
            if job in self._children:
                self._children[job].stop(self._settings.grace)
        return self.store.get(job)

    def resume(self, job: str) -> Job:
        """Queue a failed or cancelled job again; it goes on from its last checkpoint.

        Raises:
            JobStateError: It is neither failed nor cancelled nor on its way.
            JobRefusedError: It could no longer start.
        """
        present = self.store.get(job)
        if present.state in (JobState.STARTING, JobState.RUNNING):
            return present
        if why := never_fits(present.need, present.tenant, self.ledger.capacity, self._settings.rules):
            raise JobRefusedError(f"job {job} can never run: {why}")
        self._move(job, JobState.QUEUED, Reason.RESUME_ASKED)
        self.tick()
        return self.store.get(job)

    async def wait(self, job: str, states: Collection[JobState] = ()) -> Job:
        """Wait until a job is in one of the states, or over.

        Raises:
            JobError: The supervisor stops before.
        """
        present = self.store.get(job)
        if present.state.is_over or present.state in states:
            return present
        waiter: asyncio.Future[Job] = self._loop.create_future()
        entry = (states, waiter)
        self._waiters.setdefault(job, []).append(entry)
        try:
            return await waiter
        finally:
            left = self._waiters.get(job, [])
            if entry in left:
                left.remove(entry)
            if not left:
                self._waiters.pop(job, None)

    def tick(self) -> None:
        """Start whatever can start now."""
        try:
            self._start_what_can()
        except STORE_ERRORS as error:
            self._fail(error)

    def _start_what_can(self) -> None:
        again = not self._closing
        while again:
            decided = plan(
                self._waiting(),
                self._held(),
                self.ledger.capacity,
                self._settings.rules,
                starts=self.store.starts,
                reservation=self._reservation,
            )
            self._reservation = decided.reservation
            for job, why in decided.impossible.items():
                self._move(job, JobState.FAILED, Reason.IMPOSSIBLE, why)
            for job in decided.stop:
                if (child := self._children.get(job)) is not None:
                    self._let_save(child)
            started = [self._start(job) for job in decided.start]
            again = not all(started)  # what couldn't be started left its place to others

    def _let_save(self, child: TaskChild) -> None:
        """Ask a job's process to leave; one that only loads yet has nothing to save."""
        begun = self.store.get(child.job).state is not JobState.STARTING
        child.preempt(self._settings.save_grace if begun else 0.0, self._settings.grace)

    def _waiting(self) -> list[Waiting]:
        return [
            Waiting(
                job=job.id,
                tenant=job.tenant,
                need=job.need,
                priority=job.priority,
                number=job.number,
                since=job.since,
            )
            for job in self.store.jobs(JobState.QUEUED, outlines=True)
            if job.id not in self._resting
        ]

    def _held(self) -> list[Held]:
        return [
            Held(
                job=job.id,
                tenant=job.tenant,
                need=job.need,
                priority=job.priority,
                since=job.since,
                start=job.start,
                leaving=(child := self._children.get(job.id)) is None or child.leaving,
            )
            for job in self.store.jobs(JobState.STARTING, JobState.RUNNING, JobState.CANCELLING, outlines=True)
        ]

    def _start(self, job_id: str) -> bool:
        """Start a job's process; False if that failed, and so did the job."""
        waiting = self.store.get(job_id)
        allocation = self.ledger.take(job_id, waiting.attempt + 1, waiting.need)
        try:
            job = self.store.begin(job_id, allocation.devices)
        except BaseException:  # interrupted too: what was taken must not stay taken
            self.ledger.release(job_id, waiting.attempt + 1)
            raise
        folder = self.folder(job_id)
        try:
            folder.prepare(job.config)
            lock = try_lock(folder.lock)
            if lock is None:
                raise JobError(f"{folder.lock} is held by a process of a former attempt")
            self._children[job_id] = TaskChild(
                self._loop,
                job_id,
                job.attempt,
                command=(self._settings.command or task_server_command)(job, folder),
                directory=job.directory,
                env=environment_of(allocation, self.ledger.capacity),
                folder=folder,
                lock=lock,
                on_ready=self._ready,
                on_exit=self._exited,
            )
            if job.need.memory:
                self._watches.add(self._children[job_id], job.need.memory)
        except (OSError, JobError) as error:
            self.ledger.release(job_id, job.attempt)
            self._move(job_id, JobState.FAILED, Reason.START_FAILED, str(error), attempt=job.attempt)
            return False
        return True

    def _ready(self, child: TaskChild) -> None:
        try:
            if self.store.get(child.job).state is JobState.STARTING:
                self._move(child.job, JobState.RUNNING, Reason.STARTED, attempt=child.attempt)
        except STORE_ERRORS as error:
            self._fail(error)

    def _exited(self, child: TaskChild) -> None:
        """Settle an attempt: the only place where what it held is freed."""
        if self._closed:
            return
        if self._children.get(child.job) is child:
            del self._children[child.job]
        stopped = Reason.INTERRUPTED if self._closing else Reason.PREEMPTED if child.preempted else None
        self._settle(child.job, child.attempt, child.how_it_ended(), child.code, stopped, child.excess)

    def _settle_orphan(self, job: Job) -> None:
        self._settle(job.id, job.attempt, "ended with its scheduler", None, Reason.INTERRUPTED)

    def _settle(
        self,
        job_id: str,
        attempt: int,
        ended: str,
        code: int | None,
        stopped: Reason | None,
        excess: str | None = None,
    ) -> None:
        try:
            job = self.store.get(job_id)
            if job.attempt == attempt and job.state.holds_resources:
                verdict = judge(
                    job,
                    self.folder(job_id).outcome_of(attempt),
                    ended=ended,
                    code=code,
                    stopped=stopped,
                    retry=self._settings.retry,
                    excess=excess,
                )
                self._move(job_id, verdict.state, verdict.reason, verdict.detail, attempt=attempt)
                self._rest(self.store.get(job_id))
        except STORE_ERRORS as error:  # the next supervisor settles it
            self._fail(error)
        finally:
            self.ledger.release(job_id, attempt)
        self.tick()

    def _fail(self, error: Exception) -> None:
        """Without a store no promise can be kept: nothing is started any more."""
        if self._closing:
            return
        logger.error("the job store fails: %s", error)
        self._closing = True
        for child in self._children.values():
            child.stop(self._settings.grace)
        if self._on_failure is not None:
            self._on_failure(error)

    def _rest(self, job: Job) -> None:
        """Let a job that failed wait before its next attempt."""
        if job.state is not JobState.QUEUED or job.reason not in (Reason.ERROR, Reason.CRASHED) or self._closing:
            return

        def over() -> None:
            del self._resting[job.id]
            self.tick()

        self._resting[job.id] = self._loop.call_later(self._settings.retry.delay(job.failures), over)

    def _move(self, job: str, wanted: JobState, reason: Reason, detail: str = "", attempt: int | None = None) -> None:
        moved = self.store.move(job, wanted, reason, detail, attempt=attempt)
        if moved is None:
            return
        if moved.state is not JobState.QUEUED and (timer := self._resting.pop(job, None)) is not None:
            timer.cancel()
        for states, waiter in self._waiters.get(job, []):
            if (moved.state.is_over or moved.state in states) and not waiter.done():
                waiter.set_result(moved)
