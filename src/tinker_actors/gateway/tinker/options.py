"""What an operator may choose of the Tinker API."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import Field

from tinker_actors.scheduler.sections import Section

Surrogate: TypeAlias = Literal["importance_sampling", "ppo", "cispo", "truncated_is", "masked_is"]
"""What may be computed in the place of a loss whose objective isn't public."""


class TinkerOptions(Section):
    """The Tinker API's section of the service's configuration."""

    stable_reinforce: Surrogate | None = None
    """The loss that is computed where clients ask for `stable_reinforce`; it is refused if none is given."""
    compress: bool = False
    """Have clients compress their batches (zstd): for slow networks."""
    tokens: bool = False
    """Have clients exchange their API key for short-lived tokens, and send those: for networks that others read."""
    session_life: float = Field(default=1800.0, gt=0)
    """Seconds without a word of its client after which a session ends, and its models with it."""
    models_of_tenant: int = Field(default=64, ge=1)
    """Models that a tenant may have in training at once: each takes the trainer's memory."""
