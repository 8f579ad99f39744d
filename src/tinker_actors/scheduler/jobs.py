"""What a configuration's job is given to, whichever kind it is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from tinker_actors.scheduler.checks import check_job as check_rl
from tinker_actors.scheduler.devices import check_device
from tinker_actors.scheduler.inference_config import InferenceConfig
from tinker_actors.scheduler.loading import JobConfig
from tinker_actors.scheduler.model_checks import check_model, policies_of
from tinker_actors.scheduler.observer import RunObserver, Summary
from tinker_actors.scheduler.run_folder import RunFolder
from tinker_actors.scheduler.sft_config import SftConfig
from tinker_actors.scheduler.starts import check_starts
from tinker_actors.scheduler.stopping import StopRequest
from tinker_actors.scheduler.tracking import tracked
from tinker_actors.scheduler.training_place import check_place


def check_job(config: JobConfig, folder: RunFolder | None = None) -> None:
    """Find out whether a job can work at all, before anything is started or written.

    Args:
        config: What to run.
        folder: Where it goes on, if it does; what its state has copies of may be gone from where it came from.

    Raises:
        ConfigError: Something that it names can't be loaded, a tracker's package isn't there, or a service that is to
            train can't be reached or doesn't take the key.
        ModelError: The model can't be resolved, or its chat template can't be used.
        ConfigError: The model has a shorter context than is asked for, or no layer of a name that is to be adapted, or
            a snapshot that a policy is to start from isn't there or doesn't fit.
    """
    check_device("model.device", config.model.device)
    if not isinstance(config, InferenceConfig):
        config.tracking.check()
    if isinstance(config, SftConfig):
        from tinker_actors.scheduler.sft_prepare import check_sft

        check_sft(config)
    elif isinstance(config, InferenceConfig):
        from tinker_actors.scheduler.inference import check_inference

        check_inference(config)
    else:
        check_rl(config, folder.load_state() if folder else None)
    if not isinstance(config, InferenceConfig):
        check_place(config.trainer, config.model)
    check_model(config)
    if folder is None or folder.saved_state() is None:
        check_starts(policies_of(config), config.model.name)


def program_of(config: JobConfig) -> Callable[[Any, RunFolder, RunObserver, StopRequest | None], Awaitable[Summary]]:
    """What runs such a job. Loads torch and all else that it takes, which is seconds the first time."""
    if isinstance(config, InferenceConfig):
        from tinker_actors.scheduler.inference import run_inference

        return run_inference
    if isinstance(config, SftConfig):
        from tinker_actors.scheduler.sft import run_sft

        return run_sft
    from tinker_actors.scheduler.task_server import run_job as run_rl

    return run_rl


async def run_job(
    config: JobConfig, folder: RunFolder, observer: RunObserver, stop: StopRequest | None = None
) -> Summary:
    """Run a job in its folder. A folder with a saved state goes on from there.

    Args:
        config: What to run.
        folder: Made by `RunFolder.create`, or that of an interrupted run.
        observer: Told what happens.
        stop: How it is asked to save and stop before its end; it raises `asyncio.CancelledError` then.

    Raises:
        RunError: Another run goes on in the folder, or this one can't go on; its last saved step stays usable.
        ConfigError: The environment, the data or the model can't be loaded.
        DataError: The data of a supervised run has bad lines.
    """
    program = program_of(config)
    with folder.held():
        if isinstance(config, InferenceConfig):
            return await program(config, folder, observer, stop)
        async with tracked(config, observer, folder) as observer:
            return await program(config, folder, observer, stop)
