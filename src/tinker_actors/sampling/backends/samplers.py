"""The sampler actors over other engines."""

from __future__ import annotations

from tinker_actors.errors import ConfigError
from tinker_actors.sampling.backends.front import EngineSampler
from tinker_actors.sampling.backends.settings import TinkerSettings, VllmSettings


class VllmSampler(EngineSampler):
    """Answers as `Sampler` does, by a vLLM server; needs the extra `vllm`.

    Args:
        base_model: Name of the base model.
        store: Folder or URL of the snapshot store.
        settings: Which server, and how it serves.
        context_length: Longest prompt and reply together, in tokens; None is the base model's own.

    Raises:
        ConfigError: The settings name no server, or the extra `vllm` isn't installed.
    """

    def __init__(
        self, *, base_model: str, store: str, settings: VllmSettings, context_length: int | None = None
    ) -> None:
        settings.check_complete()
        try:
            from tinker_actors.sampling.backends.vllm_engine import VllmEngine
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"the backend 'vllm' needs the package {error.name}; install tinker-actors[vllm]"
            ) from error
        engine = VllmEngine(base_model=base_model, store=store, settings=settings, context_length=context_length)
        super().__init__(engine, max_waiting=settings.max_waiting)


class TinkerSampler(EngineSampler):
    """Answers as `Sampler` does, by a remote Tinker service; needs the extra `tinker`.

    Args:
        base_model: Name of the base model, whose tokenizer turns samples into text.
        settings: Which service.
        store: Folder or URL of the snapshot store, if its handles are to be sampled from; what the service itself made
            needs none.
    """

    def __init__(self, *, base_model: str, settings: TinkerSettings, store: str | None = None) -> None:
        from tinker_actors.sampling.backends.tinker_engine import TinkerEngine

        super().__init__(
            TinkerEngine(base_model=base_model, settings=settings, store=store), max_waiting=settings.max_waiting
        )
