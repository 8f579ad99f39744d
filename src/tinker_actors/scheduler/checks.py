"""Whether a job can work at all, found out before anything is started or written."""

from __future__ import annotations

from tinker_actors.environments import Environment, EnvironmentFactory, isolation_of, load_environment
from tinker_actors.errors import ConfigError, TinkerActorsError
from tinker_actors.models import load_renderer, load_tokenizer
from tinker_actors.scheduler.config import RunConfig
from tinker_actors.scheduler.line_ups import Players, check_players
from tinker_actors.scheduler.objectives import check_objectives
from tinker_actors.scheduler.run_folder import RunState
from tinker_actors.scheduler.training_place import check_extensions, check_reference


def check_job(config: RunConfig, state: RunState | None = None) -> EnvironmentFactory:
    """Load what a job names, without weights.

    Args:
        config: The job.
        state: What it goes on from; the stores of the snapshots and the reference that it has copies of may be gone.

    Returns:
        The job's environment.

    Raises:
        ConfigError: The environment can't be loaded or made with its options, or lacks the demonstrations that the
            warm-up needs, its seats can't be filled as the tables say, it can't be isolated as asked, a
            function that `algorithm` names isn't there, or `kl.reference` is not in the store that is named.
        ConfigError: The service that is to train has no field for what is asked of it.
        ModelError: The model can't be resolved, or its chat template can't be used.
    """
    environment = load_environment(config.environment.name, **config.environment.options)
    # the boundary to the environment's constructor, which is user code
    try:
        environment()
    except TinkerActorsError:
        raise
    except Exception as error:  # user code: any failure is named in one line
        options = ", ".join(f"{key}={value!r}" for key, value in config.environment.options.items())
        raise ConfigError(f"environment {environment.name}({options}): {type(error).__name__}: {error}") from error
    pool_size(config, environment)
    players = Players.of(config, environment.environment.seats)
    check_players(players, environment, state.frozen if state else ())
    if config.warmup.method != "none" and environment.environment.demonstrate is Environment.demonstrate:
        raise ConfigError(
            f"warmup.method is {config.warmup.method!r}, but environment {environment.name} has no demonstrate(); "
            "define it, or set warmup.method to 'none'"
        )
    load_renderer(load_tokenizer(config.model.name), config.model.chat_template)
    check_objectives(config)
    if state is None:
        check_reference(config)
    check_extensions(config)
    return environment


def pool_size(config: RunConfig, environment: EnvironmentFactory) -> int:
    """How many processes of its own each rollout worker has for its environments.

    Raises:
        ConfigError: The environment can't be isolated as asked, or processes are asked for that it has no use for.
    """
    asked = config.environment
    try:
        where = isolation_of(environment.environment, asked.isolation)
    except ConfigError as error:
        raise ConfigError(f"environment.isolation: {error}") from None
    if where == "process":
        return asked.pool or 1
    if asked.pool is not None:
        raise ConfigError(
            f"environment.pool is {asked.pool}, but environment.isolation of {environment.name} is {where!r}, which "
            "has no processes; 'process' has"
        )
    return 0
