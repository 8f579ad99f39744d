"""What a run is: plain, checked, serialisable data. A configuration that can't work is refused here."""

from __future__ import annotations

from typing import Any, Literal, cast, get_args

from pydantic import Field, ValidationInfo, field_validator, model_validator

from tinker_actors.algorithms import ADVANTAGE_SETTINGS, AdvantageConfig, AdvantageName, Aggregation
from tinker_actors.environments import Isolation
from tinker_actors.errors import ConfigError, PolicyError
from tinker_actors.policies import Handle
from tinker_actors.scheduler.learners import LearnerSettings, TrainerSection, settings_of
from tinker_actors.scheduler.objectives import is_own
from tinker_actors.scheduler.players import PolicyName, PolicyTable, SeatSection
from tinker_actors.scheduler.rollout_section import RolloutSection
from tinker_actors.scheduler.sampler_section import SamplerSection
from tinker_actors.scheduler.sections import JobSection, Section
from tinker_actors.scheduler.tracking import TrackingSection
from tinker_actors.scheduler.training_place import check_run
from tinker_actors.training import LossConfig
from tinker_actors.training.loss_config import LOSS_DEFAULTS, SUPERVISED, LossName

RL_LOSSES = tuple(name for name in LOSS_DEFAULTS if name not in SUPERVISED)
"""The losses that a run may name."""

_LOSS_SETTINGS = ("clip_low", "clip_high", "dual_clip", "beta", "ratio", "entropy_coefficient")


class EnvironmentSection(Section):
    """Where the policy acts."""

    name: str
    """A shipped environment, `path/to/file.py`, `path/to/file.py:Class` or `module:Class`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the environment's constructor."""
    isolation: Isolation | None = None
    """Where its methods run: `inline` on the event loop of their rollout worker, in a `thread` of each instance, or in
    another `process`; what its class says if not given."""
    pool: int | None = Field(default=None, ge=1)
    """Processes of each rollout worker that hold its instances, where isolation is `process`; 1 if not given."""


class WarmupSection(Section):
    """Supervised fine-tuning on the environment's own demonstrations, before RL."""

    method: Literal["none", "lora", "full"] = "none"
    """`lora` trains the policy's adapter; `full` trains all weights and makes the result the run's base model."""
    steps: int = Field(default=40, ge=1)
    episodes_per_step: int = Field(default=64, ge=1)
    learning_rate: float = Field(default=3e-3, gt=0)


class AlgorithmSection(Section):
    """How rewards become gradients."""

    name: str = "grpo"
    """How advantages are estimated: an estimator's name, or a function as `path/to/file.py:function` or
    `module:function`."""
    discount: float | None = None
    """What a reward is multiplied by for each step of time before it, in `turn_returns` and `gae`; the estimator's own
    if not given, as all of its settings."""
    discount_per: Literal["turn", "token"] | None = None
    """What a step of time is: a `turn`, or an action `token`."""
    trace_decay: float | None = None
    """Lambda, in `gae`."""
    normalise: bool | None = None
    """Whether advantages get mean 0 and standard deviation 1 over the batch's action tokens, in `gae`."""
    baseline: Literal["group", "batch"] | None = None
    """What returns are compared over, in `turn_returns`."""
    baseline_decay: float | None = None
    """How much of a running baseline remains after a trajectory, in `role_baseline`."""
    pass_k: int | None = None
    """How many samples the best is taken of, in `pass_at_k`."""
    value_coefficient: float | None = None
    """Weight of the value head's loss, in `gae`; 0.5 if not given."""
    value_clip: float | None = None
    """How far a value may move in one step's passes, in `gae`; 0.2 if not given, 0 for no bound."""
    loss: str = "ppo"
    """A loss's name, or a function as for `name`."""
    clip_low: float | None = None
    """Lower bound of the probability ratio; the loss's own if not given, as all of its settings."""
    clip_high: float | None = None
    """Upper bound of the probability ratio."""
    dual_clip: float | None = None
    """Bound of the ratio where the advantage is negative, in `dual_clip_ppo`."""
    beta: float | None = None
    """Weight of the squared log-ratio, in `dro`."""
    ratio: Literal["token", "sequence_product", "sequence_mean"] | None = None
    """What the ratio is taken over, in `truncated_is` and `masked_is`."""
    entropy_coefficient: float = 0.0
    """Weight of an entropy bonus."""
    aggregation: Literal["token_sum", "token_mean", "sequence_mean", "constant"] | None = None
    """`token_mean` if not given; `constant` for `dr_grpo`."""
    aggregation_constant: int | None = Field(default=None, ge=1)
    """Tokens, for `constant`; the environment's turns times `rollouts.max_tokens` if not given."""

    @field_validator("name", "loss")
    @classmethod
    def _known_or_own(cls, value: str, info: ValidationInfo) -> str:
        known = get_args(AdvantageName) if info.field_name == "name" else RL_LOSSES
        if value not in known and not is_own(value):
            raise ValueError(f"{', '.join(known)} or a function of one's own, as file.py:function, is needed")
        return value


class KlSection(Section):
    """A pull towards a frozen reference policy."""

    coefficient: float = Field(default=0.0, ge=0)
    """0 is off."""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    where: Literal["loss", "reward"] = "loss"
    """`loss` adds the estimate to the loss, with its gradient; `reward` takes it off the advantage of its token."""
    reference: str = "initial"
    """`initial`, the policy as RL begins; `base`, the base model; or the handle of a training checkpoint."""
    reference_store: str | None = None
    """The folder of the store that the handle is in; the run's own if not given."""

    @field_validator("reference")
    @classmethod
    def _name_or_handle(cls, value: str) -> str:
        if value not in ("initial", "base"):
            try:
                Handle.parse(value, kind="weights")
            except PolicyError as error:
                raise ValueError(f"'initial', 'base' or the handle of a checkpoint is needed: {error}") from error
        return value

    @model_validator(mode="after")
    def _refuse_a_store_of_nothing(self) -> KlSection:
        if self.reference_store is not None and self.reference in ("initial", "base"):
            raise ValueError(
                f"reference_store is {self.reference_store!r}, but reference is {self.reference!r}, which no store "
                "holds; the handle of a checkpoint there is needed"
            )
        return self


class EvaluationSection(Section):
    """Validation on tasks that training never sees."""

    every: int = Field(default=10, ge=0)
    """Steps between evaluations; 0 evaluates only at the start and the end."""
    episodes: int = Field(default=64, ge=1)
    temperature: float = Field(default=0.0, ge=0)
    """0 is greedy."""
    workers: int = Field(default=0, ge=0)
    """Child processes that play evaluations and nothing else; the rollout workers do if 0."""
    stop_at: float | None = None
    """Training ends early once an evaluation's mean reward reaches this."""
    seats: dict[str, SeatSection] = Field(default_factory=dict)
    """Who plays which seat, where it is someone else than in training."""

    @field_validator("seats")
    @classmethod
    def _refuse_leagues(cls, value: dict[str, SeatSection]) -> dict[str, SeatSection]:
        for seat, section in value.items():
            if section.player == "league":
                raise ValueError(
                    f"seat {seat!r} has player 'league', whose pool changes, so that evaluations could not be "
                    "compared; 'snapshot', 'script', 'demonstration' or 'policy' is needed"
                )
        return value


class RunConfig(JobSection):
    """An RL run. Every key can be given in TOML or as `--section.key value`."""

    job: Literal["rl"] = "rl"
    """The kind of job; supervised ones have a configuration of their own."""
    environment: EnvironmentSection
    warmup: WarmupSection = WarmupSection()
    algorithm: AlgorithmSection = AlgorithmSection()
    kl: KlSection = KlSection()
    rollouts: RolloutSection = RolloutSection()
    sampler: SamplerSection = SamplerSection()
    trainer: TrainerSection = TrainerSection()
    evaluation: EvaluationSection = EvaluationSection()
    tracking: TrackingSection = TrackingSection()
    policies: dict[PolicyName, PolicyTable] = Field(default_factory=dict)
    """The policies that learn, where it is not a single one in all seats."""
    seats: dict[str, SeatSection] = Field(default_factory=dict)
    """Who plays which seat of the environment."""

    def loss_config(self) -> LossConfig:
        """The loss of the run's updates, where it is one that comes with the package.

        Raises:
            ConfigError: A setting belongs to another loss, or can't work.
        """
        value_coefficient, value_clip = self._value_loss()
        return LossConfig(
            name=cast("LossName", self.algorithm.loss),
            **{name: getattr(self.algorithm, name) for name in _LOSS_SETTINGS},
            kl_coefficient=self.kl.coefficient if self.kl.where == "loss" else 0.0,
            kl_estimator=self.kl.estimator,
            value_coefficient=value_coefficient,
            value_clip=value_clip,
        )

    def _value_loss(self) -> tuple[float, float | None]:
        """Coefficient and clip."""
        own = self.algorithm
        if own.name != "gae":
            for name in ("value_coefficient", "value_clip"):
                if (value := getattr(own, name)) is not None:
                    raise ConfigError(f"{name} is {value}, but {own.name} has no values; gae does")
            return 0.0, None
        if own.value_coefficient is not None and own.value_coefficient <= 0:
            raise ConfigError(f"value_coefficient is {own.value_coefficient}; gae needs a positive number to learn by")
        clip = 0.2 if own.value_clip is None else own.value_clip
        return 0.5 if own.value_coefficient is None else own.value_coefficient, clip or None

    def advantage_config(self) -> AdvantageConfig:
        """How the run estimates advantages, where by an estimator that comes with the package.

        Raises:
            ConfigError: A setting belongs to another estimator, or can't work.
        """
        own = self.algorithm
        given = {name: getattr(own, name) for name in ADVANTAGE_SETTINGS}
        return AdvantageConfig(name=cast("AdvantageName", own.name), **given)

    def learners(self) -> dict[str, LearnerSettings]:
        """What each policy that learns is made of and trained with, by its id.

        Raises:
            ValueError: A table can't work with what it is laid over.
        """
        return settings_of(self.policies, self.policy, self.trainer)

    @model_validator(mode="after")
    def _refuse_what_cannot_work(self) -> RunConfig:
        for name, settings in self.learners().items():
            where = f"policies.{name}: " if self.policies else ""
            if settings.policy.kind == "full" and self.warmup.method == "lora":
                raise ValueError(
                    f"{where}warmup.method is 'lora', but policy.kind 'full' has no adapter; 'full' is needed, or "
                    "'none'"
                )
            if settings.policy.start_store is not None and self.warmup.method == "full":
                raise ValueError(
                    f"{where}policy.start_store is {settings.policy.start_store!r}, but warmup.method 'full' makes a "
                    "base model that its snapshots don't stand on; 'lora' or 'none' is needed"
                )
            settings.trainer.check_trains(settings.policy)
        self._refuse_unknown_policies()
        try:
            if is_own(self.algorithm.loss):
                self._refuse_settings_of_own_loss()
            else:
                self.loss_config()
        except ConfigError as error:
            raise ValueError(f"algorithm.{error}") from error
        if self.algorithm.aggregation_constant is not None and self.aggregation != "constant":
            raise ValueError(
                f"algorithm.aggregation_constant is {self.algorithm.aggregation_constant}, but algorithm.aggregation "
                f"is {self.aggregation!r}, which takes none; 'constant' does"
            )
        self._refuse_groups_without_advantage()
        self._refuse_what_cannot_overlap()
        check_run(self, self.learners())
        self.sampler.check_serves(self)
        return self

    def _refuse_unknown_policies(self) -> None:
        known = list(self.learners())
        for table, seats in (("seats", self.seats), ("evaluation.seats", self.evaluation.seats)):
            for seat, section in seats.items():
                if section.policy is not None and section.store is None and section.policy not in known:
                    raise ValueError(
                        f"{table}.{seat}.policy is {section.policy!r}, which is none of this run's; those are "
                        f"{', '.join(known)}"
                    )

    def _refuse_settings_of_own_loss(self) -> None:
        own = self.algorithm
        self._value_loss()
        for name in _LOSS_SETTINGS:
            value = getattr(own, name)
            if value != type(own).model_fields[name].default:
                raise ConfigError(f"{name} is {value}, but {own.loss} is a function, which has its settings itself")
        if own.name == "gae":
            raise ConfigError(f"name is 'gae', whose value head {own.loss} doesn't train; a loss by its name is needed")
        if self.kl.coefficient and self.kl.where == "loss":
            raise ConfigError(
                f"loss is {own.loss!r}, a function, to which kl.coefficient {self.kl.coefficient} can't be added; "
                "kl.where 'reward' is needed, or 0"
            )
        if self.trainer.backend != "local":
            raise ConfigError(
                f"loss is {own.loss!r}, a function, which trainer.backend {self.trainer.backend!r} doesn't take; "
                "'local' is needed"
            )

    def _refuse_groups_without_advantage(self) -> None:
        rollouts, name = self.rollouts, self.algorithm.name
        try:
            if is_own(name):
                self._refuse_settings_of_own_advantage()
                least, needs_values = 1, False
            else:
                estimate = self.advantage_config()
                least, needs_values = estimate.least_group, estimate.needs_values
        except ConfigError as error:
            raise ValueError(f"algorithm.{error}") from error
        if needs_values != self.policy.value_head:
            raise ValueError(
                f"policy.value_head is true, but algorithm.name {name!r} has no use for it; leave it out"
                if self.policy.value_head
                else f"algorithm.name is {name!r}, which needs values; policy.value_head true is needed"
            )
        if self.trainer.steps and rollouts.group_size < least:
            raise ValueError(
                f"rollouts.group_size is {rollouts.group_size}; algorithm.name {name!r} compares at least {least} "
                f"episodes of a task: at least {least} is needed, or trainer.steps 0"
            )
        if rollouts.filter == "varied_rewards" and rollouts.group_size < 2:
            raise ValueError(
                "rollouts.filter is 'varied_rewards' and rollouts.group_size is 1; a single reward never varies: "
                "'none' is needed, or groups of at least 2"
            )

    def _refuse_settings_of_own_advantage(self) -> None:
        for setting in ADVANTAGE_SETTINGS:
            if (value := getattr(self.algorithm, setting)) is not None:
                raise ConfigError(
                    f"{setting} is {value}, but {self.algorithm.name} is a function, which has its settings itself"
                )

    def _refuse_what_cannot_overlap(self) -> None:
        rollouts, epochs = self.rollouts, self.trainer.epochs
        if rollouts.max_staleness is not None and rollouts.max_staleness < epochs - 1:
            raise ValueError(
                f"rollouts.max_staleness is {rollouts.max_staleness}; the last of trainer.epochs {epochs} is "
                f"{epochs - 1} optimizer steps away from what sampled it: at least {epochs - 1} is needed"
            )
        if self.steps_ahead and self.algorithm.loss == "dro":
            raise ValueError(
                f"algorithm.loss is 'dro' and rollouts.submit_ahead is {rollouts.submit_ahead}; dro doesn't weight "
                "what an older snapshot sampled by the probability ratio, so that its gradient would be biased: a loss "
                "that does, such as 'ppo' or 'importance_sampling', is needed"
            )
        if rollouts.refresh == "turn" and rollouts.lockstep == "off":
            raise ValueError(
                "rollouts.refresh is 'turn' and rollouts.lockstep is 'off'; snapshots change at the points where "
                "episodes wait for each other: rollouts.lockstep 'step' or 'group' is needed"
            )

    @property
    def aggregation(self) -> Aggregation:
        """How the batch's loss is averaged: as named, or as the estimator goes with."""
        return self.algorithm.aggregation or ("constant" if self.algorithm.name == "dr_grpo" else "token_mean")

    @property
    def steps_ahead(self) -> int:
        """How many steps rollouts may really be ahead: `submit_ahead`, or fewer where `max_staleness` binds."""
        rollouts, epochs = self.rollouts, self.trainer.epochs
        if rollouts.max_staleness is None:
            return rollouts.submit_ahead
        return min(rollouts.submit_ahead, (rollouts.max_staleness - (epochs - 1)) // epochs)
