"""The tables that say which policies learn and who plays which seat: `[policies.NAME]` and `[seats.SEAT]`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, model_validator

from tinker_actors.errors import PolicyError
from tinker_actors.policies import Handle
from tinker_actors.scheduler.sections import OptimizerSection, PolicySection, Section
from tinker_actors.training import OptimizerName
from tinker_actors.training.schedules import Schedule

SOLE_POLICY = "policy"
"""The id of the policy of a run without `[policies.NAME]`."""

PolicyName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$")]
"""A policy's id: no dash, so that `--policies.NAME.key` names it, and no dot, which ids that a run makes up have."""

Player: TypeAlias = Literal["policy", "snapshot", "league", "script", "demonstration", "person", "endpoint"]
LeagueRule: TypeAlias = Literal["uniform", "latest_k", "age", "win_rate"]

_SAMPLED = ("temperature", "max_tokens")
_OWN: Mapping[str, tuple[str, ...]] = {
    "policy": ("policy", *_SAMPLED),
    "snapshot": ("policy", "snapshot", "store", *_SAMPLED),
    "league": ("policy", "rule", "latest_k", "age_decay", "win_rate_power", "every", "size", "self_share", *_SAMPLED),
    "script": ("function", "options"),
    "demonstration": (),
    "endpoint": ("policy", "harness", "command", "options", "seconds", "difference", "tool_format", *_SAMPLED),
    "person": (),
}
_OF_RULES: Mapping[str, str] = {"latest_k": "latest_k", "age_decay": "age", "win_rate_power": "win_rate"}


class PolicyTable(Section):
    """One of the policies that learn: what it has in place of the keys of `[policy]` and `[trainer]`."""

    kind: Literal["lora", "full"] | None = None
    rank: int | None = None
    alpha: float | None = None
    target_modules: Any = None
    targets: tuple[str, ...] | None = None
    start: str | None = None
    start_store: str | None = None
    optimizer: OptimizerName | None = None
    learning_rate: float | None = None
    schedule: Schedule | None = None
    warmup_steps: int | None = None
    final_ratio: float | None = None
    beta1: float | None = None
    beta2: float | None = None
    momentum: float | None = None
    epsilon: float | None = None
    weight_decay: float | None = None
    grad_clip_norm: float | None = None

    def over(self, section: PolicySection | OptimizerSection) -> dict[str, Any]:
        """A section's values with this table's laid over them; still to be validated."""
        own = self.model_dump(exclude_none=True)
        return section.model_dump() | {name: own[name] for name in type(section).model_fields if name in own}


class SeatSection(Section):
    """Who plays a seat."""

    player: Player = "policy"
    """`policy` learns from the seat, and so it does behind an `endpoint` for a harness; the others are frozen: a
    `snapshot`, a `league` of past snapshots, a `script`, the environment's own `demonstration`s, or a `person` at the
    terminal of the run."""
    policy: str | None = None
    """Which policy plays, or whose snapshots; if not given, the one that bears the seat's name, or the only one."""
    snapshot: str | None = None
    """`initial`, the policy as RL begins; the handle of a snapshot or checkpoint; or `latest` of a `store`."""
    store: str | None = None
    """The folder of another store, such as `runs/a/1/policies`."""
    rule: LeagueRule | None = None
    """How the opponent of a group is drawn from the pool; `uniform` if not given."""
    latest_k: int | None = Field(default=None, ge=1)
    """How many of the newest are drawn from, with `latest_k`; 5 if not given."""
    age_decay: float | None = Field(default=None, gt=0, lt=1)
    """A snapshot's weight over that of the next newer one, with `age`; 0.8 if not given."""
    win_rate_power: float | None = Field(default=None, gt=0)
    """The power of (1 - the learner's win rate) that is a snapshot's weight, with `win_rate`; 2 if not given."""
    every: int | None = Field(default=None, ge=1)
    """Steps from one snapshot that enters the pool to the next; 5 if not given."""
    size: int | None = Field(default=None, ge=1)
    """Snapshots in the pool; beyond them the oldest goes. 16 if not given."""
    self_share: float | None = Field(default=None, ge=0, le=1)
    """Share of groups that are played against the newest snapshot instead; 0.2 if not given."""
    function: str | None = None
    """`package.module:function`, or the name of a function in the environment's own file."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the function, or of the harness."""
    harness: str | None = None
    """`package.module:function` that takes a `HarnessCall` and returns the action's text."""
    command: tuple[str, ...] | None = None
    """In place of `harness`: a program and its arguments, which writes the action's text to its standard output."""
    seconds: float | None = Field(default=None, gt=0)
    """For one answer of a harness; only the turn's limit if not given."""
    difference: Literal["refuse", "override"] | None = None
    """What becomes of a temperature or top-p that a harness asks for and that isn't the run's; `refuse` if not given,
    but in evaluations, which override it."""
    tool_format: str | None = None
    """How the model writes the calls of a harness's tools; `hermes` if not given."""
    temperature: float | None = Field(default=None, ge=0)
    """In place of that of `[rollouts]` or `[evaluation]`."""
    max_tokens: int | None = Field(default=None, ge=1)
    """In place of that of `[rollouts]`."""

    @model_validator(mode="after")
    def _refuse_what_cannot_work(self) -> SeatSection:
        own = _OWN[self.player]
        for name in type(self).model_fields:
            value = getattr(self, name)
            if name not in ("player", *own) and value is not None and value != {}:
                raise ValueError(
                    f"{name} is {value!r}, but player {self.player!r} has no such key; "
                    f"{f'those are {_listed(own)}' if own else 'it has none'}"
                )
        if self.player == "script" and self.function is None:
            raise ValueError("function is missing; player 'script' plays by one, such as 'my_package.bots:play'")
        if self.player == "endpoint" and bool(self.harness) == bool(self.command):
            raise ValueError(
                f"harness is {self.harness!r} and command {self.command and list(self.command)}; player 'endpoint' "
                "needs one of them, such as harness = 'my_package.agents:play'"
            )
        if self.learns and self.temperature == 0:
            raise ValueError("temperature is 0.0; a policy that learns is sampled at a temperature above 0")
        for name, rule in _OF_RULES.items():
            if (value := getattr(self, name)) is not None and self.rule != rule:
                raise ValueError(f"{name} is {value}, but rule {self.rule or 'uniform'!r} has none; {rule!r} does")
        self._refuse_no_snapshot()
        return self

    def _refuse_no_snapshot(self) -> None:
        if self.player != "snapshot":
            return
        which = self.snapshot or ("latest" if self.store else "initial")
        if which == "latest" and self.store is None:
            raise ValueError("snapshot is 'latest', but no store is given; name the folder of one, or 'initial'")
        if which == "initial" and self.store is not None:
            raise ValueError(
                f"snapshot is 'initial', which is this run's, and store is {self.store!r}; 'latest' or a handle is "
                "needed"
            )
        if which not in ("latest", "initial"):
            try:
                Handle.parse(which)
            except PolicyError as error:
                raise ValueError(f"snapshot is no 'initial', 'latest' or handle: {error}") from error
            if self.store is None:
                raise ValueError(f"snapshot is {which!r}, but no store is given; name the folder that it lies in")
            if self.policy is not None:
                raise ValueError(f"policy is {self.policy!r} and snapshot is {which!r}; the handle says whose it is")

    @property
    def learns(self) -> bool:
        """Whether a policy learns from the seat."""
        return self.player in ("policy", "endpoint")

    @property
    def frozen_name(self) -> str:
        """Names the frozen snapshot that plays, for seats that share one."""
        which = self.snapshot or ("latest" if self.store else "initial")
        return (
            f"{which} of {self.policy}" if self.store is None else f"{which} of {self.policy or 'any'} in {self.store}"
        )


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names)
