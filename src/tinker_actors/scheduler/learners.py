"""What each policy that learns is made of and trained with: the sections of all, with a policy's own values in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from pydantic import Field, ValidationError

from tinker_actors.scheduler.players import SOLE_POLICY, PolicyTable
from tinker_actors.scheduler.sections import OptimizerSection, PolicySection
from tinker_actors.training import AdamParams


class TrainerSection(OptimizerSection):
    """The optimizer and how long to use it."""

    steps: int = Field(default=60, ge=0)
    epochs: int = Field(default=1, ge=1)
    """Optimizer steps on each batch of rollouts."""

    def optimizer_params(self, step: int) -> AdamParams:
        """The settings of the optimizer in a step, counted from 1."""
        return self.params_at(step, self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerSettings:
    """What one policy that learns is made of, and how it is trained."""

    policy: PolicySection
    trainer: TrainerSection


def settings_of(
    tables: Mapping[str, PolicyTable], policy: PolicySection, trainer: TrainerSection
) -> dict[str, LearnerSettings]:
    """The settings of every policy, by its id.

    Args:
        tables: Those of `[policies.NAME]`; without any there is one policy.
        policy: What they are laid over.
        trainer: The same.

    Raises:
        ValueError: A table can't work with what it is laid over.
    """
    if not tables:
        return {SOLE_POLICY: LearnerSettings(policy=policy, trainer=trainer)}
    return {
        name: LearnerSettings(
            policy=_laid_over(f"policies.{name}", table, policy), trainer=_laid_over(f"policies.{name}", table, trainer)
        )
        for name, table in tables.items()
    }


_Laid = TypeVar("_Laid", PolicySection, TrainerSection)


def _laid_over(name: str, table: PolicyTable, section: _Laid) -> _Laid:
    """A section with a policy's own values in it.

    Raises:
        ValueError: They can't work; names the table.
    """
    try:
        return type(section).model_validate(table.over(section))
    except ValidationError as error:
        detail = error.errors()[0]
        key = ".".join([name, *map(str, detail["loc"])])
        message = str(detail["msg"]).removeprefix("Value error, ")
        text = f" is {detail['input']!r}; {message[0].lower()}{message[1:]}" if detail["loc"] else f": {message}"
        raise ValueError(f"{key}{text}") from None
