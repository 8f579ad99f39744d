"""What a run tells of itself while it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Protocol, TypeAlias


class Phase(Enum):
    """What a run is doing."""

    START = "start"
    DATA = "data"
    WARMUP = "warm-up"
    EVALUATION = "evaluation"
    ROLLOUT = "rollout"
    UPDATE = "update"
    PUBLISH = "publish"
    SAVE = "save"
    SAMPLE = "sampling"
    END = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """A run's result.

    Attributes:
        reward_first: Mean episode reward of the first step's rollouts; None without steps.
        reward_last: The same of the last step.
        eval_before: Mean episode reward of the evaluation before RL.
        eval_after: The same after it.
        steps: Update steps done.
        seconds: Wall time, start and warm-up included.
        more_before: What the environment reports and, with several seats, rewards and outcomes by seat and policy in
            the evaluation before RL.
        more_after: The same after it.
    """

    reward_first: float | None
    reward_last: float | None
    eval_before: float
    eval_after: float
    steps: int
    seconds: float
    more_before: Mapping[str, float] = field(default_factory=dict[str, float])
    more_after: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True, kw_only=True)
class SftSummary:
    """A supervised run's result; losses are per trained token, in nats.

    Attributes:
        loss_first: Of the first step's examples before it; None without steps.
        loss_last: Of the last step's examples before it.
        eval_before: Of the evaluation before training; None if nothing is evaluated on, as the others.
        eval_after: Of the evaluation after it.
        eval_best: The least of all evaluations.
        best: Handle of the snapshot that had it.
        steps: Optimizer steps done.
        examples: Examples trained on, each counted once an epoch.
        tokens: Tokens trained on, likewise.
        skipped: Lines that were not used.
        seconds: Wall time, start included.
    """

    loss_first: float | None
    loss_last: float | None
    eval_before: float | None
    eval_after: float | None
    eval_best: float | None
    best: str | None
    steps: int
    examples: int
    tokens: int
    skipped: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceSummary:
    """An inference run's result.

    Attributes:
        snapshot: Handle of the snapshot that answered.
        prompts: How many there were.
        failed: How many got no reply, such as those that are longer than the context.
        samples: Replies.
        tokens: That were sampled.
        seconds: In which they were.
    """

    snapshot: str
    prompts: int
    failed: int
    samples: int
    tokens: int
    seconds: float


Summary: TypeAlias = RunSummary | SftSummary | InferenceSummary
"""The result of a run of any kind."""


class RunObserver(Protocol):
    """Watches a run; every method returns at once and none may raise."""

    def started(self, title: str, folder: Path, total: int, resumed_at: int, unit: str = "step") -> None:
        """The run begins, or goes on after `resumed_at` of `total` steps, or of what else `unit` says."""

    def phase(self, phase: Phase, step: int, total: int) -> None:
        """A phase begins; within it, `step` of `total`."""

    def progress(self, done: int, total: int) -> None:
        """Episodes, lines or examples of the present phase that are done."""

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """An update step is done."""

    def evaluated(
        self, step: int, value: float, measure: str = "reward", more: Mapping[str, float] | None = None
    ) -> None:
        """An evaluation is done, after `step` steps; `measure` says what was found.

        `more` has what the environment reports and, with several seats, rewards and outcomes by seat and policy.
        """

    def transcript(self, label: str, text: str) -> None:
        """An episode worth showing, as text."""

    def note(self, text: str) -> None:
        """Something that a person should know, such as a worker that died."""

    def finished(self, summary: Summary, folder: Path) -> None:
        """The run is complete."""
