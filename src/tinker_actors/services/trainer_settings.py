"""Settings of training at a Tinker service, as they stand in a run's configuration. Plain data; loads no torch."""

from __future__ import annotations

import os
from dataclasses import dataclass

from tinker_actors.errors import ConfigError
from tinker_actors.policies import PolicySpec, Role
from tinker_actors.sampling.backends.settings import ServiceSettings
from tinker_actors.services.contract import NewModel

ALPHA = 32.0
"""LoRA's alpha, which the protocol has no field for: services scale adapters by 32 / rank."""

_ALL_LINEAR: tuple[Role, ...] = ("attention", "mlp")
"""What `all-linear` is in roles: every linear layer but the head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TinkerTrainerSettings(ServiceSettings):
    """Training at a remote Tinker service.

    Attributes:
        takes_masks: Whether the service takes this package's own extensions, as `tinker-actors serve` does: masks, all
            of this package's losses, and their KL and entropy terms. If not given, one at a `url` of its own, given
            here or as `TINKER_BASE_URL`, is taken to.
    """

    takes_masks: bool | None = None

    @property
    def extended(self) -> bool:
        """`takes_masks`, or what stands for it."""
        return bool(self.address) if self.takes_masks is None else self.takes_masks

    @property
    def address(self) -> str | None:
        """The service's address; None for the client's own."""
        return self.url or os.environ.get("TINKER_BASE_URL") or None


def new_model(spec: PolicySpec, base_model: str) -> NewModel:
    """A policy as a service makes it.

    Args:
        spec: The policy.
        base_model: What the service calls its base model.

    Raises:
        ConfigError: The protocol has no field for what it is made from.
    """
    if spec.kind != "lora":
        raise ConfigError(f"kind is {spec.kind!r}; a Tinker service trains adapters alone: 'lora' is needed")
    if spec.value_head:
        raise ConfigError("value_head is true; a Tinker service trains none: false is needed")
    if spec.alpha != ALPHA:
        raise ConfigError(f"alpha is {spec.alpha}; a Tinker service takes none and has {ALPHA}: that is needed")
    if not spec.targets and spec.target_modules != "all-linear":
        raise ConfigError(
            f"target_modules is {list(spec.target_modules)}; a Tinker service takes roles alone: targets of "
            "'attention', 'mlp' and 'unembed' are needed, or 'all-linear'"
        )
    roles = spec.targets or _ALL_LINEAR
    return NewModel(
        base_model=base_model,
        rank=spec.rank,
        seed=spec.seed,
        train_attn="attention" in roles,
        train_mlp="mlp" in roles,
        train_unembed="unembed" in roles,
        user_metadata={} if spec.name is None else {"policy": spec.name},
    )
