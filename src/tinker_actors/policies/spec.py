"""What a policy is made from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from tinker_actors.errors import ConfigError
from tinker_actors.policies.handles import check_id

PolicyKind: TypeAlias = Literal["lora", "full"]
Role: TypeAlias = Literal["attention", "mlp", "unembed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySpec:
    """What a policy is made from; the same spec gives the same initial weights, bit for bit.

    >>> PolicySpec(base_model="tiny-llama", rank=0)
    Traceback (most recent call last):
    tinker_actors.errors.ConfigError: rank is 0; an integer of at least 1 is needed

    Attributes:
        base_model: The base model's name in the catalogue.
        kind: `lora`: a trained adapter over the shared frozen base; `full`: a trained copy of all weights.
        rank: Rank of the adapter's matrices (lora).
        alpha: The adapter's output is scaled by alpha / rank (lora).
        target_modules: `all-linear` (every linear layer but the head), or names of modules (lora).
        targets: Roles of the layers to adapt, in place of `target_modules`: `attention`, `mlp`, `unembed` (the output
            head); none for what `target_modules` says (lora).
        value_head: Whether a scalar head on the last hidden state is trained beside the policy (part of the training
            state, not of snapshots).
        seed: Seeds the adapter's initial weights and the policy's random numbers.
        name: The policy's id; None for one that the trainer draws.
    """

    base_model: str
    kind: PolicyKind = "lora"
    rank: int = 16
    alpha: float = 32.0
    target_modules: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    value_head: bool = False
    targets: tuple[Role, ...] = ()
    seed: int = 0
    name: str | None = None

    @classmethod
    def from_plain(cls, fields: Mapping[str, Any]) -> PolicySpec:
        """The spec that was stored as plain data (`dataclasses.asdict`, through JSON).

        Raises:
            ConfigError: The fields make no spec.
        """
        plain: dict[str, Any] = dict(fields)
        for name in ("target_modules", "targets"):  # tuples are lists in JSON
            if isinstance(plain.get(name), list):
                plain[name] = tuple(plain[name])
        try:
            return cls(**plain)
        except TypeError as error:
            raise ConfigError(f"{dict(fields)} is no policy spec: {error}") from error

    def __post_init__(self) -> None:
        if not self.base_model:
            raise ConfigError("base_model is empty; the name of a base model is needed")
        if self.kind not in get_args(PolicyKind):
            raise ConfigError(f"kind is {self.kind!r}; {' or '.join(get_args(PolicyKind))} is needed")
        if self.rank < 1:
            raise ConfigError(f"rank is {self.rank}; an integer of at least 1 is needed")
        if not (math.isfinite(self.alpha) and self.alpha > 0):
            raise ConfigError(f"alpha is {self.alpha}; a positive number is needed")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed is {self.seed}; an integer from 0 to 2**63 - 1 is needed")
        self._check_targets()
        if self.name is not None:
            check_id("policy name", self.name)

    def _check_targets(self) -> None:
        if unknown := [role for role in self.targets if role not in get_args(Role)]:
            raise ConfigError(f"targets has {unknown[0]!r}; roles are {', '.join(get_args(Role))}")
        if len(set(self.targets)) < len(self.targets):
            raise ConfigError(f"targets is {self.targets!r}; each role is needed once at most")
        if self.targets and self.target_modules != "all-linear":
            raise ConfigError(
                f"targets is {self.targets!r} and target_modules {self.target_modules!r}; one or the other is needed"
            )
        if isinstance(self.target_modules, str):
            valid = self.target_modules == "all-linear"
        else:
            valid = bool(self.target_modules) and all(self.target_modules)
        if not valid:
            raise ConfigError(
                f"target_modules is {self.target_modules!r}; 'all-linear' or a tuple of module names is needed"
            )
