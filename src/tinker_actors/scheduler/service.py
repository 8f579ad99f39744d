"""The scheduler as an actor: whoever can reach it submits jobs, follows and ends them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

from tinker_actors.actors import Actor, ActorFailure, concurrent
from tinker_actors.errors import UnknownJobError
from tinker_actors.scheduler.deletion import Deletions
from tinker_actors.scheduler.followers import Followers
from tinker_actors.scheduler.job_records import Job, JobQuery, JobRequest, Transition
from tinker_actors.scheduler.resources import Resources
from tinker_actors.scheduler.scheduler_settings import SchedulerSettings
from tinker_actors.scheduler.states import JobState
from tinker_actors.scheduler.supervisor import Supervisor


class Scheduler(Actor):
    """Accepts jobs, dispatches them to task servers, watches these and frees what they held.

    When it stops, its jobs' processes do too; another scheduler of the same folder goes on with them from their last
    checkpoints. Every method that names a job takes the `tenant` that asks: None may see all, any other its own only.

    Args:
        root: Its folder.
        capacity: All that its jobs may hold.
        settings: How they are run.
    """

    def __init__(self, root: str, capacity: Resources, *, settings: SchedulerSettings | None = None) -> None:
        self._followers = Followers()
        self._supervisor = Supervisor(
            Path(root),
            capacity,
            settings=settings,
            on_failure=lambda error: self.ref.tell.fail(str(error)),
            on_change=self._followers.tell,
        )
        self._started = False

    async def on_start(self) -> None:
        """Take up the folder."""
        self._supervisor.start()
        self._deletions = Deletions(self._supervisor.store, self._supervisor.jobs)
        self._deletions.end_what_was_begun()
        self._started = True

    async def on_stop(self) -> None:
        """Stop the jobs' processes and give up the folder."""
        if self._started:
            await self._supervisor.stop()

    @concurrent
    async def drain(self) -> None:
        """Start nothing more, and let running jobs save their present step and end: what comes before a clean stop.

        They are queued for the next scheduler of the folder. Jobs are still taken and told of.
        """
        await self._supervisor.drain()

    async def submit(self, request: JobRequest) -> Job:
        """Take a job: once this has returned, it is kept whatever happens to this process.

        Raises:
            JobRefusedError: It could never start; says what could.
        """
        return self._supervisor.submit(request)

    async def job(self, job: str, tenant: str | None = None) -> Job:
        """A job as it stands.

        Raises:
            UnknownJobError: The tenant has no such job.
        """
        return self._own(job, tenant)

    async def jobs(self, states: tuple[JobState, ...] = (), tenant: str | None = None) -> list[Job]:
        """Jobs in the order of their submission: those in one of the states, or in any if none is given."""
        return self._supervisor.store.jobs(*states, tenant=tenant)

    async def search(self, query: JobQuery, tenant: str | None = None) -> list[Job]:
        """Jobs that a query asks for, the newest first."""
        return self._supervisor.store.search(query, tenant)

    async def counts(self, tenant: str | None = None) -> dict[JobState, int]:
        """How many jobs are in each state."""
        return self._supervisor.store.counts(tenant)

    @concurrent
    async def changes(self, tenant: str | None = None) -> AsyncIterator[Job | None]:
        """None at once, and then every job that is submitted, moves or is `deleted` after that, as it stands.

        Nobody waits for a slow reader: it gets each job as it stands last, and skips what was overtaken meanwhile.
        """
        with self._followers.joined(tenant) as follower:
            yield None
            while True:
                yield await follower.next()

    async def transitions(self, job: str, tenant: str | None = None) -> list[Transition]:
        """How a job came to where it stands, oldest first.

        Raises:
            UnknownJobError: The tenant has no such job.
        """
        return self._supervisor.store.transitions(self._own(job, tenant).id)

    async def folder(self, job: str, tenant: str | None = None) -> str:
        """A job's folder: `output.log`, and the run folder `run`.

        Raises:
            UnknownJobError: The tenant has no such job.
        """
        return str(self._supervisor.folder(self._own(job, tenant).id).root)

    async def cancel(self, job: str, tenant: str | None = None) -> Job:
        """End a job: at once if it is queued, else its process gets its grace time. One that is over stays as it is.

        Raises:
            UnknownJobError: The tenant has no such job.
        """
        return self._supervisor.cancel(self._own(job, tenant).id)

    async def resume(self, job: str, tenant: str | None = None) -> Job:
        """Queue a failed or cancelled job again; it goes on from its last checkpoint.

        Raises:
            JobStateError: It has succeeded, or is being cancelled.
            JobRefusedError: It could no longer start.
            UnknownJobError: The tenant has no such job.
        """
        return self._supervisor.resume(self._own(job, tenant).id)

    async def delete(self, job: str, tenant: str | None = None) -> Job:
        """Delete a job that is over: its folder and all that is known of it. `cleared` waits until its files are gone.

        Returns:
            It as it stood last, `deleted`.

        Raises:
            JobStateError: It isn't over, or one that isn't over names files of it.
            JobError: Its folder can't be deleted; then nothing is.
            UnknownJobError: The tenant has no such job (any more).
        """
        return self._deletions.delete(self._own(job, tenant).id)

    async def check_deletable(self, job: str, tenant: str | None = None) -> None:
        """Raise what `delete` would because of how things stand."""
        self._deletions.check(self._own(job, tenant).id)

    @concurrent
    async def cleared(self) -> None:
        """Wait until the files of the jobs that were deleted so far are gone."""
        await self._deletions.cleared()

    async def users_of(self, path: str, tenant: str | None = None) -> list[str]:
        """Ids of the jobs that aren't over and whose configuration names an absolute path, or something below it."""
        return self._deletions.users_of(Path(path), tenant)

    async def users_of_files(self, paths: list[str]) -> dict[str, list[str]]:
        """For each of these absolute paths that a job names which isn't over, the ids of those jobs."""
        return self._deletions.users_of_files(paths)

    async def knows(self, tenant: str, key: str) -> bool:
        """Whether a tenant submitted a job with this key before."""
        return self._supervisor.store.of_key(tenant, key) is not None

    @concurrent
    async def wait(self, job: str, states: tuple[JobState, ...] = (), tenant: str | None = None) -> Job:
        """A job once it is in one of the states, or over.

        Raises:
            JobError: The scheduler stops before; the next one of its folder knows the job.
            UnknownJobError: The tenant has no such job.
        """
        return await self._supervisor.wait(self._own(job, tenant).id, states)

    async def fail(self, text: str) -> None:
        """Fail, so that a restart policy can start the scheduler anew: what it tells itself when its store fails.

        Raises:
            ActorFailure: Always.
        """
        raise ActorFailure(f"the job store fails: {text}")

    async def free(self) -> Resources:
        """What no job holds."""
        return self._supervisor.ledger.free

    def _own(self, job: str, tenant: str | None) -> Job:
        found = self._supervisor.store.get(job)
        if tenant is not None and found.tenant != tenant:
            raise UnknownJobError(f"there is no job {job!r}")  # as if it weren't there
        return found
