"""What a supervised fine-tuning run is: plain, checked, serialisable data."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from tinker_actors.scheduler.sections import JobSection, OptimizerSection, RunName, Section
from tinker_actors.scheduler.tracking import TrackingSection
from tinker_actors.scheduler.training_place import check_policy
from tinker_actors.training.schedules import Schedule


def _as_names(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_as_names)]
"""One name or a list of names."""


class DataSection(Section):
    """What is learned from."""

    train: Names
    """JSONL files, parquet files, saved data sets or data sets on a hub; one or a list."""
    split: str = "train"
    """Which split of a data set; a file has none."""
    evaluation: Names = ()
    """The same for what is only evaluated on."""
    evaluation_split: str = "test"
    holdout: float = Field(default=0.0, ge=0, lt=1)
    """Share of the training examples, drawn by the seed, that is evaluated on rather than trained."""
    train_on: Literal["all", "last"] = "all"
    """All assistant messages of a conversation, or the last one only."""
    max_length: int | None = Field(default=None, ge=2)
    """Tokens of an example; the model's context if not given."""
    too_long: Literal["refuse", "drop", "keep_first", "keep_last"] = "refuse"
    """What happens to a longer one: it is a bad line, is left out, or gives exactly its first or last tokens."""
    on_bad_line: Literal["error", "skip"] = "error"
    """Whether a line that can't be used ends the run, or is left out and listed in `skipped.jsonl`."""
    shuffle: bool = True
    """In an order that depends on the seed and the epoch; the data's own order if not."""

    @model_validator(mode="after")
    def _refuse_what_cannot_work(self) -> DataSection:
        if not self.train:
            raise ValueError("train names nothing; at least one file or data set is needed")
        if self.evaluation and self.holdout:
            raise ValueError(f"holdout is {self.holdout}, but evaluation names data of its own; one of them is needed")
        return self


class BatchSection(Section):
    """What one optimizer step learns from."""

    examples: int | None = Field(default=None, ge=1)
    """Examples of a batch; 16 if `tokens` is not given either."""
    tokens: int | None = Field(default=None, ge=1)
    """Most tokens of a batch, instead; an example that is longer is a batch of its own."""
    accumulation: int = Field(default=1, ge=1)
    """Batches whose gradients are added up for one optimizer step."""

    @model_validator(mode="after")
    def _one_of_them(self) -> BatchSection:
        if self.examples is not None and self.tokens is not None:
            raise ValueError(
                f"examples is {self.examples} and tokens is {self.tokens}; a batch is bounded by one of them"
            )
        return self


class SftTrainerSection(OptimizerSection):
    """The optimizer and how long to use it."""

    epochs: int = Field(default=1, ge=1)
    """How often each example is trained on."""
    steps: int | None = Field(default=None, ge=1)
    """Training ends after so many optimizer steps, if the epochs don't end before."""
    schedule: Schedule = "cosine"
    aggregation: Literal["token_mean", "sequence_mean"] = "token_mean"
    """Whether every trained token of a step counts alike, or every example."""


class SftEvaluationSection(Section):
    """Loss per token on what is not trained on."""

    every: int = Field(default=50, ge=0)
    """Steps between evaluations; 0 evaluates only at the start and the end."""
    stop_at: float | None = Field(default=None, gt=0)
    """Training ends early once the evaluation's loss is no more than this."""


class SftConfig(JobSection):
    """A supervised fine-tuning run. Every key can be given in TOML or as `--section.key value`."""

    job: Literal["sft"]
    name: RunName = "sft"
    data: DataSection
    batch: BatchSection = BatchSection()
    trainer: SftTrainerSection = SftTrainerSection()
    evaluation: SftEvaluationSection = SftEvaluationSection()
    tracking: TrackingSection = TrackingSection()

    @model_validator(mode="after")
    def _refuse_what_cannot_work(self) -> SftConfig:
        self.trainer.check_trains(self.policy)
        check_policy("", self.policy, self.trainer)
        if self.policy.value_head:
            raise ValueError("policy.value_head is true, but only RL with algorithm.name 'gae' uses it; leave it out")
        if self.evaluation.stop_at is not None and not (self.data.evaluation or self.data.holdout):
            raise ValueError(
                f"evaluation.stop_at is {self.evaluation.stop_at}, but there is nothing to evaluate on: "
                "data.evaluation or data.holdout is needed"
            )
        return self
