"""From where an interrupted supervised run goes on."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from tinker_actors.scheduler.run_folder import RunFolder, write_atomically
from tinker_actors.scheduler.sft_plan import Cursor


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The evaluation with the least loss so far, and what was kept of it.

    Attributes:
        step: Optimizer steps behind it.
        loss: Loss per token.
        checkpoint: Handle of the training state; empty until it is saved.
        snapshot: Handle of the snapshot; empty until it is published.
    """

    step: int
    loss: float
    checkpoint: str = ""
    snapshot: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SftState:
    """Where a run stands after a step.

    Attributes:
        step: Optimizer steps done.
        checkpoint: Handle of the policy's training state after that step.
        cursor: How far the data has been gone through.
        digest: Of the examples; with others the cursor would mean something else.
        eval_before: Loss per token before the first step; None if nothing is evaluated on.
        eval_last: The same at this step, if it was evaluated then.
        best: The best evaluation so far.
        seconds: Wall time spent so far.
    """

    step: int = 0
    checkpoint: str = ""
    cursor: Cursor = field(default_factory=Cursor)
    digest: str = ""
    eval_before: float | None = None
    eval_last: float | None = None
    best: Best | None = None
    seconds: float = 0.0


def load_sft_state(folder: RunFolder) -> SftState | None:
    """Where a run stands, or None if it has saved nothing yet; errors as of `RunFolder.restored`."""
    return folder.restored(_state)


def _state(data: dict[str, Any]) -> SftState:
    cursor, best = Cursor(**data.pop("cursor")), data.pop("best")
    return SftState(**data, cursor=cursor, best=Best(**best) if best else None)


def save_sft_state(folder: RunFolder, state: SftState) -> None:
    """Record where the run stands; atomic."""
    write_atomically(folder.state, json.dumps(asdict(state), indent=1))
