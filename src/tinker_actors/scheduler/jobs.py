"""What a configuration's job is given to, whichever kind it is."""

from __future__ import annotations

from tinker_actors.scheduler.checks import check_job as check_rl
from tinker_actors.scheduler.inference_config import InferenceConfig
from tinker_actors.scheduler.loading import JobConfig
from tinker_actors.scheduler.observer import RunObserver, Summary
from tinker_actors.scheduler.run_folder import RunFolder
from tinker_actors.scheduler.sft_config import SftConfig
from tinker_actors.scheduler.stopping import StopRequest
from tinker_actors.scheduler.tracking import tracked


def check_job(config: JobConfig) -> None:
    """Find out whether a job can work at all, before anything is started or written.

    Raises:
        ConfigError: Something that it names can't be loaded, or a tracker's package isn't there.
        ModelError: The model can't be resolved, or its chat template can't be used.
    """
    if not isinstance(config, InferenceConfig):
        config.tracking.check()
    if isinstance(config, SftConfig):
        from tinker_actors.scheduler.sft_prepare import check_sft

        check_sft(config)
    elif isinstance(config, InferenceConfig):
        from tinker_actors.scheduler.inference import check_inference

        check_inference(config)
    else:
        check_rl(config)


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
        RunError: The run can't go on; its last saved step stays usable.
        ConfigError: The environment, the data or the model can't be loaded.
        DataError: The data of a supervised run has bad lines.
    """
    if isinstance(config, InferenceConfig):
        from tinker_actors.scheduler.inference import run_inference

        return await run_inference(config, folder, observer, stop)
    async with tracked(config, observer, folder) as observer:
        if isinstance(config, SftConfig):
            from tinker_actors.scheduler.sft import run_sft

            return await run_sft(config, folder, observer, stop)
        from tinker_actors.scheduler.task_server import run_job as run_rl

        return await run_rl(config, folder, observer, stop)
