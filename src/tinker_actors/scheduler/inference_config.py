"""What an inference run is: prompts through one snapshot into replies. Plain, checked, serialisable data."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from tinker_actors.errors import PolicyError
from tinker_actors.policies import Handle
from tinker_actors.sampling import SamplingParams
from tinker_actors.scheduler.sections import ModelSection, RunName, Section
from tinker_actors.scheduler.sft_config import Names


class PromptsSection(Section):
    """What is answered."""

    prompts: Names
    """JSONL files, parquet files, saved data sets or data sets on a hub; one or a list."""
    split: str = "train"
    """Which split of a data set; a file has none."""


class ReplySection(Section):
    """How prompts are answered, and by what."""

    snapshot: str | None = None
    """The handle of a snapshot, or `latest` of `policy`; the base model itself if not given."""
    store: str | None = None
    """The folder of the store that holds the snapshot, such as `runs/a/1/policies`."""
    policy: str = "policy"
    """Whose snapshot is the `latest`."""
    samples: int = Field(default=1, ge=1)
    """Replies to each prompt."""
    max_tokens: int = Field(default=256, ge=1)
    temperature: float = Field(default=1.0, ge=0)
    """0 is greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = -1
    stop: tuple[str, ...] = ()
    """Strings that end a reply, besides the model's own stop tokens."""
    at_once: int = Field(default=64, ge=1)
    """Prompts that are answered together; their replies are written together."""
    threads: int = Field(default=2, ge=1)
    """Of torch."""

    def params(self, seed: int) -> SamplingParams:
        """As the sampler takes them."""
        return SamplingParams(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            stop=self.stop,
            seed=seed,
        )

    @model_validator(mode="after")
    def _refuse_what_cannot_work(self) -> ReplySection:
        if (self.snapshot is None) != (self.store is None):
            raise ValueError(
                f"snapshot is {self.snapshot!r} and store is {self.store!r}; a snapshot lies in a store: both are "
                "needed, "
                "or neither for the base model"
            )
        if self.snapshot not in (None, "latest"):
            try:
                Handle.parse(self.snapshot, kind="sampler_weights")
            except PolicyError as error:
                raise ValueError(f"snapshot is no 'latest' or handle: {error}") from error
        if self.top_k < 1 and self.top_k != -1:
            raise ValueError(f"top_k is {self.top_k}; at least 1 is needed, or -1 for no bound")
        return self


class InferenceConfig(Section):
    """An inference run. Every key can be given in TOML or as `--section.key value`."""

    job: Literal["inference"]
    name: RunName = "inference"
    seed: int = Field(default=0, ge=0)
    output: str | None = None
    """The run folder; a new one under `runs/NAME/` if not given."""
    model: ModelSection = ModelSection()
    data: PromptsSection
    sampling: ReplySection = ReplySection()
