"""The section of a run's configuration that says what samples: this package, a vLLM server or a Tinker service."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Literal

from pydantic import model_validator

from tinker_actors.actors import Mesh
from tinker_actors.errors import ConfigError
from tinker_actors.sampling.backends import LocalSettings, ServesSnapshots, TinkerSettings, VllmSettings
from tinker_actors.sampling.backends.settings import VLLM_RANKS, ServiceSettings
from tinker_actors.scheduler.sections import OptimizerSection, PolicySection, Section

if TYPE_CHECKING:
    from tinker_actors.scheduler.config import RunConfig

_LEAST, _MOST = 0.01, 2.0
"""Temperatures that vLLM takes, besides 0."""


class SamplerSection(Section):
    """What samples."""

    backend: Literal["local", "vllm", "tinker"] = "local"
    """`local`, in the run's process; `vllm`, a server with adapters that are loaded while it runs; or `tinker`, a
    remote service."""
    local: LocalSettings = LocalSettings()
    vllm: VllmSettings = VllmSettings()
    tinker: TinkerSettings = TinkerSettings()

    @model_validator(mode="after")
    def _refuse_what_cannot_work(self) -> SamplerSection:
        # a run's own folder writes every key down, so it is the value that tells
        settings = {"local": self.local, "vllm": self.vllm, "tinker": self.tinker}
        for name, given in settings.items():
            if name != self.backend and given != type(given)():
                raise ValueError(f"{name} has settings, but backend is {self.backend!r}; leave them out, or {name!r}")
        if self.backend == "vllm":
            try:
                self.vllm.check_complete()
            except ConfigError as error:
                raise ValueError(f"vllm.{error}") from error
        return self

    def check_serves(self, config: RunConfig) -> None:
        """Refuse a backend that can't serve a run.

        Raises:
            ValueError: Names the key, the value and what would be right.
        """
        if self.backend == "local":
            return
        policies = {name: settings.policy for name, settings in config.learners().items()}
        new_base = config.warmup.method == "full"
        for name, policy in policies.items():
            if policy.kind == "full":
                raise ValueError(
                    f"sampler.backend is {self.backend!r}, which serves adapters alone, but policy {name!r} is of kind "
                    "'full'; 'lora' is needed, or sampler.backend 'local'"
                )
        if self.backend == "tinker":
            self._check_tinker(config.trainer, new_base=new_base)
            return
        if new_base and self.vllm.url:
            raise ValueError(
                f"warmup.method is 'full', which makes a base model that the server at sampler.vllm.url "
                f"{self.vllm.url!r} doesn't have; 'lora' or 'none' is needed, or sampler.vllm.python"
            )
        for section in ("rollouts", "evaluation"):
            key, temperature = f"{section}.temperature", getattr(config, section).temperature
            if temperature != 0 and not _LEAST <= temperature <= _MOST:
                raise ValueError(f"{key} is {temperature}; sampler.backend 'vllm' takes 0, and {_LEAST} to {_MOST}")
        for name, policy in policies.items():
            self._check_adapter(name, policy)

    def _check_adapter(self, name: str, policy: PolicySection) -> None:
        most = self.vllm.max_lora_rank or VLLM_RANKS[-1]
        if policy.rank > most:
            raise ValueError(f"policy {name!r} has rank {policy.rank}; sampler.backend 'vllm' serves at most {most}")
        served = set(self.vllm.target_modules)
        given = () if policy.target_modules == "all-linear" else policy.target_modules
        others = [module for module in given if module.rpartition(".")[2] not in served]
        if "unembed" in policy.targets:
            others.append("unembed")
        if others:
            raise ValueError(
                f"policy {name!r} adapts {', '.join(others)}; sampler.vllm.target_modules serves "
                f"{', '.join(sorted(served))}"
            )

    def _check_tinker(self, trainer: OptimizerSection, *, new_base: bool) -> None:
        if new_base:
            raise ValueError(
                "warmup.method is 'full', which makes a base model that no service has; 'lora' or 'none' is needed"
            )
        if trainer.backend == "tinker":
            self._check_same(trainer.tinker)
        elif not self.tinker.serves_store:
            raise ValueError(
                "sampler.backend is 'tinker', but the policy is trained here, and a Tinker service serves what was "
                "trained there; trainer.backend 'tinker' is needed, or, for a service that reads the run's snapshot "
                "store, sampler.tinker.serves_store true"
            )

    def _check_same(self, trainer: ServiceSettings) -> None:
        """Refuse a sampler at another service than the trainer's, whose snapshots it can't have."""
        if self.tinker.serves_store:
            raise ValueError(
                "sampler.tinker.serves_store is true, but trainer.backend is 'tinker', whose weights lie at the "
                "service; leave it out"
            )
        for name in (field.name for field in fields(ServiceSettings)):
            given, theirs = getattr(self.tinker, name), getattr(trainer, name)
            if given not in (getattr(ServiceSettings(), name), theirs):
                raise ValueError(
                    f"sampler.tinker.{name} is {given!r} and trainer.tinker.{name} {theirs!r}; what is trained at a "
                    "service is sampled there: leave the sampler's out"
                )

    async def spawn(self, mesh: Mesh, config: RunConfig, *, base_model: str, store: str) -> ServesSnapshots:
        """The sampler's ref, in this process.

        Args:
            mesh: Where.
            config: The run's.
            base_model: Name of the base model.
            store: The run's snapshot store.
        """
        context_length = config.model.context_length
        if self.backend == "vllm":
            from tinker_actors.sampling.backends import VllmSampler

            settings = self.vllm
            if settings.max_lora_rank is None:
                highest = max(learner.policy.rank for learner in config.learners().values())
                settings = replace(settings, max_lora_rank=next(rank for rank in VLLM_RANKS if rank >= highest))
            return await mesh.spawn(
                VllmSampler,
                base_model=base_model,
                store=store,
                settings=settings,
                context_length=context_length,
                node=0,
            )
        if self.backend == "tinker":
            from tinker_actors.sampling.backends import TinkerSampler

            remote = replace(self.tinker, context_length=self.tinker.context_length or context_length)
            if config.trainer.backend == "tinker":
                remote = remote.at(config.trainer.tinker)
            return await mesh.spawn(TinkerSampler, base_model=base_model, store=store, settings=remote, node=0)
        from tinker_actors.sampling import Sampler

        return await mesh.spawn(
            Sampler,
            base_model=base_model,
            store=store,
            context_length=context_length,
            device=config.model.device,
            node=0,
            **asdict(self.local),
        )
