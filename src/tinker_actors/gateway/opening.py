"""From a configuration to a running gateway, for `tinker-actors serve` and for a service of one's own."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from tinker_actors.errors import ConfigError, JobError, SchedulerFolderError
from tinker_actors.gateway.admission import Admission, refuse_off_host
from tinker_actors.gateway.config import ServeConfig
from tinker_actors.gateway.gateway import Gateway
from tinker_actors.gateway.jobs.deleting import Retention
from tinker_actors.gateway.jobs.handover import handing_over
from tinker_actors.gateway.jobs.submissions import Submissions
from tinker_actors.gateway.jobs.uploads import Uploads
from tinker_actors.gateway.jobs.vetting import JOB_STORE, Allowed
from tinker_actors.gateway.keys import FILE_NAME, KeyStore
from tinker_actors.gateway.runtime import Runtime, ServedModel
from tinker_actors.scheduler.job_folder import JobFolder
from tinker_actors.scheduler.resources import Resources
from tinker_actors.scheduler.run_folder import RunFolder
from tinker_actors.scheduler.scheduler_settings import SchedulerSettings
from tinker_actors.scheduler.service import Scheduler


@asynccontextmanager
async def open_gateway(config: ServeConfig) -> AsyncIterator[Gateway]:
    """Start what a gateway serves, on the running event loop; end it when the block is left.

    Running jobs save their present step then and are queued; the next gateway of the same root goes on with them. It
    takes over neither signals nor the event loop.

    Raises:
        ConfigError: Something that the configuration names can't be had.
        JobError: Another gateway has the root.
    """
    async with AsyncExitStack() as stack:
        keys = stack.enter_context(KeyStore(Path(config.root) / FILE_NAME))
        refuse_off_host(config.host, keys)
        folder = _folder(config)
        models = served_models(config, folder)
        runtime = await stack.enter_async_context(Runtime(config.root, models, in_process=config.in_process))
        capacity = config.capacity.resources()
        scheduler = await _scheduler(config, runtime, folder, capacity)
        stack.push_async_callback(scheduler.drain)
        gateway = Gateway(
            runtime=runtime,
            admit=Admission(keys),
            limits=config.limits,
            sampling=config.sampling,
            tinker=config.tinker,
            scheduler=scheduler,
            submissions=submissions_for(config, scheduler, folder),
        )
        await stack.enter_async_context(gateway)
        await stack.enter_async_context(handing_over(gateway))
        await stack.enter_async_context(_retention(config, gateway).kept())
        yield gateway


async def _scheduler(config: ServeConfig, runtime: Runtime, folder: Path, capacity: Resources) -> Scheduler:
    settings = SchedulerSettings(
        rules=config.rules.rules(capacity),
        retry=config.jobs.retry(),
        grace=config.jobs.grace,
        save_grace=config.jobs.save_grace,
    )
    try:
        return await runtime.mesh.spawn(Scheduler, str(folder), capacity, settings=settings, name="scheduler", node=0)
    except SchedulerFolderError:
        raise JobError(
            f"root is {config.root!r}, in which another gateway serves; end that one, or give another --root"
        ) from None


def served_models(config: ServeConfig, folder: Path) -> list[ServedModel]:
    """What the configuration serves, with the folders of base models that jobs made in the places of their names.

    Args:
        config: The gateway's.
        folder: Of its scheduler.

    Raises:
        ConfigError: A job that it names has made no base model.
    """
    found: list[ServedModel] = []
    for model in config.served():
        job = model.catalogue_name.removeprefix(JOB_STORE)
        if job == model.catalogue_name:
            found.append(model)
            continue
        base = RunFolder(JobFolder(folder / "jobs" / os.path.basename(job)).run).base
        if not base.is_dir():
            raise ConfigError(
                f'models."{model.name}".base is {model.catalogue_name!r}, which has made no base model; a job with '
                "warmup.method 'full' does"
            )
        found.append(replace(model, base_model=str(base)))
    return found


def submissions_for(config: ServeConfig, scheduler: Scheduler, folder: Path) -> Submissions:
    """What checks the jobs that callers submit to a scheduler, whose folder this is."""
    served = served_models(config, folder)
    models = {model.name: _from_anywhere(model.catalogue_name) for model in served}
    jobs = config.jobs
    return Submissions(
        scheduler,
        folder,
        allowed=Allowed(models=models, paths=jobs.allowed_paths, modules=jobs.allowed_modules),
        uploads=Uploads(
            folder,
            most=jobs.upload_bytes,
            most_of_tenant=jobs.upload_bytes_of_tenant,
            uploads_of_tenant=jobs.uploads_of_tenant,
        ),
        most_unfinished=jobs.unfinished_of_tenant,
        most_kept=jobs.kept_of_tenant,
        most_priority=lambda tenant: config.rules.quotas.get(tenant, config.rules.default).priority,
    )


def _retention(config: ServeConfig, gateway: Gateway) -> Retention:
    def seconds(days: float | None) -> float | None:
        return None if days is None else days * 86400.0

    jobs = config.jobs
    return Retention(gateway, jobs=seconds(jobs.keep_days), uploads=seconds(jobs.keep_upload_days))


def _from_anywhere(model: str) -> str:
    """A model's name that means the same in every working directory."""
    return os.path.abspath(model) if os.path.isdir(model) else model


def _folder(config: ServeConfig) -> Path:
    """The scheduler's, as jobs with a working directory of their own know it."""
    return Path(os.path.realpath(config.root)) / "scheduler"
