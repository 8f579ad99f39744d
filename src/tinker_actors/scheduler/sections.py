"""The sections of a configuration that every job has: model, policy, optimizer, checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from tinker_actors.errors import PolicyError
from tinker_actors.policies import Handle, Retention, Role
from tinker_actors.scheduler.devices import DeviceName
from tinker_actors.services.trainer_settings import TinkerTrainerSettings
from tinker_actors.training import AdamParams, OptimizerName
from tinker_actors.training.optimizer_params import params_class
from tinker_actors.training.schedules import Schedule, scheduled


class Section(BaseModel):
    """Base of every section: immutable; an unknown key is an error, and so is a number that isn't finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)


class ModelSection(Section):
    """The base model."""

    name: str = "tiny-llama"
    """A catalogue name, a local model directory or a hub id."""
    chat_template: str | None = None
    """`chatml`, `plain`, a Jinja template or `renderers:FAMILY`; the model's own if not given."""
    context_length: int | None = Field(default=None, ge=8)
    """Tokens; the model's own limit if not given."""
    device: DeviceName = "cpu"
    """Where the weights are, and what trains and samples: `cpu`, `cuda` or a GPU by its number, `cuda:1`."""


class PolicySection(Section):
    """The policy that learns: a LoRA adapter on the frozen base, or a copy of all its weights."""

    kind: Literal["lora", "full"] = "lora"
    """`lora` trains an adapter, `full` all weights; the keys below are the adapter's."""
    rank: int = Field(default=16, ge=1)
    alpha: float = Field(default=32.0, gt=0)
    target_modules: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    targets: tuple[Role, ...] = ()
    """Roles of the layers to adapt, in place of `target_modules`."""
    value_head: bool = False
    """Whether a value head is trained beside the policy; what `gae` needs and nothing else uses."""
    start: str | None = None
    """The handle of a snapshot in `start_store` whose weights it begins with, or `latest`, which is the default
    there."""
    start_store: str | None = None
    """The folder of the store that holds it, such as `runs/a/1/policies`; a new adapter, or the base's own weights, if
    not given."""

    @field_validator("target_modules", mode="before")
    @classmethod
    def _all_or_some(cls, value: Any) -> Any:
        if value == "all-linear":
            return "all-linear"
        names = cast("Sequence[object]", value if isinstance(value, list | tuple) else ())
        if not names or not all(isinstance(name, str) and name for name in names):
            raise ValueError("'all-linear' or a list of module names is needed")
        return tuple(names)

    @model_validator(mode="after")
    def _refuse_what_cannot_work(self) -> PolicySection:
        # a run's own folder writes every key down, so it is the value that tells
        fields = type(self).model_fields
        own = ("rank", "alpha", "target_modules", "targets")
        given = [name for name in own if getattr(self, name) != fields[name].default]
        if self.kind == "full" and given:
            raise ValueError(f"kind is 'full', which has no {' and no '.join(given)}; leave them out")
        if self.targets and self.target_modules != "all-linear":
            raise ValueError(
                f"targets is {list(self.targets)} and target_modules {list(self.target_modules)}; one or the other is "
                "needed"
            )
        self._refuse_no_start()
        return self

    def _refuse_no_start(self) -> None:
        if self.start is None:
            return
        if self.start != "latest":
            try:
                Handle.parse(self.start, kind="sampler_weights")
            except PolicyError as error:
                raise ValueError(f"start is no 'latest' or handle of a snapshot: {error}") from error
        if self.start_store is None:
            raise ValueError(f"start is {self.start!r}, but no start_store is given; name the folder that it lies in")


class OptimizerSection(Section):
    """Where training takes place, the optimizer and its learning rate over the steps; what every job has."""

    backend: Literal["local", "tinker"] = "local"
    """`local`, in the run's process, or `tinker`, at a remote service."""
    tinker: TinkerTrainerSettings = TinkerTrainerSettings()
    optimizer: OptimizerName = "adamw"
    """`adamw_8bit` holds the moments in a byte each; `muon` is for `policy.kind` `full`."""
    learning_rate: float = Field(default=1e-4, gt=0)
    schedule: Schedule = "constant"
    """What the learning rate does after the warm-up, over all steps."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps over which the learning rate rises linearly."""
    final_ratio: float = Field(default=0.0, ge=0, le=1)
    """The share of the learning rate that `linear` and `cosine` fall to."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    momentum: float = Field(default=0.95, ge=0, lt=1)
    """Of `muon`."""
    epsilon: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    grad_clip_norm: float = Field(default=1.0, ge=0)
    """0 is off."""
    threads: int = Field(default=2, ge=1)
    """Threads of torch in the trainer's process, where a run's sampler is too."""

    def params_at(self, step: int, total: int) -> AdamParams:
        """The settings of the optimizer in a step.

        Args:
            step: Counted from 1.
            total: Steps of the whole run, which the schedule spans.
        """
        rate = scheduled(
            self.schedule,
            self.learning_rate,
            step=step,
            total=total,
            warmup=self.warmup_steps,
            floor=self.final_ratio,
        )
        return params_class(self.optimizer)(
            learning_rate=rate,
            beta1=self.beta1,
            beta2=self.beta2,
            eps=self.epsilon,
            weight_decay=self.weight_decay,
            grad_clip_norm=self.grad_clip_norm or None,
            **({"momentum": self.momentum} if self.optimizer == "muon" else {}),
        )

    @model_validator(mode="after")
    def _refuse_keys_without_use(self) -> OptimizerSection:
        # a run's own folder writes every key down, so it is the value that tells
        if self.backend != "tinker" and self.tinker != TinkerTrainerSettings():
            raise ValueError(f"tinker has settings, but backend is {self.backend!r}; leave them out, or 'tinker'")
        if self.optimizer != "muon" and self.momentum != OptimizerSection.model_fields["momentum"].default:
            raise ValueError(f"momentum is {self.momentum}, but optimizer {self.optimizer!r} has none; leave it out")
        if self.schedule == "constant" and self.final_ratio:
            raise ValueError(
                f"final_ratio is {self.final_ratio}, but schedule 'constant' never falls; 'linear' or 'cosine' does"
            )
        return self

    def check_trains(self, policy: PolicySection) -> None:
        """Refuse an optimizer that can't train a policy.

        Raises:
            ValueError: It is `muon`, and the policy an adapter.
        """
        if policy.kind == "lora" and self.optimizer == "muon":
            raise ValueError(
                "trainer.optimizer is 'muon', but policy.kind 'lora' trains no whole weight matrices; 'adamw' is "
                "needed, or policy.kind 'full'"
            )


class CheckpointSection(Section):
    """What a run keeps."""

    every: int = Field(default=5, ge=1)
    """Steps between saved training states."""
    keep: int = Field(default=2, ge=1)
    """Training states kept."""
    keep_snapshots: int = Field(default=3, ge=1)
    """Sampler snapshots kept, the newest first."""
    snapshot_age: float | None = Field(default=None, gt=0)
    """Seconds after which a sampler snapshot goes, the newest excepted; no bound if not given."""

    def retention(self) -> Retention:
        """Which sampler snapshots are kept."""
        return Retention(keep_last=self.keep_snapshots, max_age=self.snapshot_age)


RunName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
"""A name that can be a folder's."""


class JobSection(Section):
    """What every job's configuration begins with."""

    name: RunName = "run"
    seed: int = Field(default=0, ge=0)
    output: str | None = None
    """The run folder; a new one under `runs/NAME/` if not given."""
    model: ModelSection = ModelSection()
    policy: PolicySection = PolicySection()
    checkpoints: CheckpointSection = CheckpointSection()
