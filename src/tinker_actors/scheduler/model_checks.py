"""What a configuration asks of its base model, held against the model's modules before its weights are loaded."""

from __future__ import annotations

from collections.abc import Mapping

from tinker_actors.errors import ConfigError
from tinker_actors.models import resolve
from tinker_actors.scheduler.inference_config import InferenceConfig
from tinker_actors.scheduler.loading import JobConfig
from tinker_actors.scheduler.sections import ModelSection, PolicySection
from tinker_actors.scheduler.sft_config import SftConfig


def check_model(config: JobConfig) -> None:
    """Refuse a context that is longer than the model's, and layers to adapt that it hasn't or that no sampler serves.

    What is computed at a service, or by another server, is theirs to refuse.

    Raises:
        ConfigError: Names the key, the value and what would be right.
        ModelError: The model can't be resolved, or its configuration can't be read.
    """
    adapters = {
        where: policy
        for where, policy in policies_of(config).items()
        if policy.kind == "lora" and (policy.targets or policy.target_modules != "all-linear")
    }
    asked = config.model.context_length
    if isinstance(config, SftConfig):
        asked = asked or config.data.max_length
    elif not isinstance(config, InferenceConfig) and config.sampler.backend != "local":
        asked = None
    if asked is None and not adapters:
        return
    from tinker_actors.models.base import context_length_of
    from tinker_actors.models.roles import embeddings, target_names

    model = resolve(config.model.name).outline()
    limit = limit_of(config.model, context_length_of(model))
    if isinstance(config, SftConfig):
        check_length(config, limit)
    for where, policy in adapters.items():
        try:
            target_names(model, config.model.name, policy.target_modules, policy.targets)
        except ConfigError as error:
            raise ConfigError(f"{where}policy.{error}") from error
        if not isinstance(config, SftConfig) and (words := embeddings(model, policy.target_modules)):
            raise ConfigError(
                f"{where}policy.target_modules has {words[0]!r}, an embedding; samplers serve adapters of linear "
                "layers alone"
            )


def limit_of(model: ModelSection, longest: int) -> int:
    """Tokens that the context holds.

    Args:
        model: The section.
        longest: Tokens that the model was made for.

    Raises:
        ConfigError: More is asked for than the model was made for.
    """
    if model.context_length is not None and model.context_length > longest:
        raise ConfigError(f"model.context_length is {model.context_length}; {model.name} has {longest}")
    return model.context_length or longest


def check_length(config: SftConfig, limit: int) -> None:
    """Refuse examples that are longer than the context.

    Raises:
        ConfigError: They may be.
    """
    if config.data.max_length is not None and config.data.max_length > limit:
        raise ConfigError(f"data.max_length is {config.data.max_length}; the context holds {limit} tokens")


def policies_of(config: JobConfig) -> Mapping[str, PolicySection]:
    """The policies that are trained here, by what begins an error about them."""
    if isinstance(config, InferenceConfig) or config.trainer.backend != "local":
        return {}
    if isinstance(config, SftConfig):
        return {"": config.policy}
    return {
        f"policies.{name}: " if config.policies else "": settings.policy for name, settings in config.learners().items()
    }
