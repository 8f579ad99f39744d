"""A policy in a seat, as data that travels to whoever plays it there: which snapshot, who samples it, and how."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from tinker_actors.environments.conversation import Overflow
from tinker_actors.errors import ConfigError
from tinker_actors.sampling.requests import SamplingParams, SamplingReply, SamplingRequest


class SamplesTokens(Protocol):
    """What serves a policy: a ref of a `Sampler`, or anything that answers like one."""

    async def sample(self, request: SamplingRequest, /) -> SamplingReply:
        """Sample from the snapshot that the request names."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySeat:
    """A policy's snapshot plays.

    Attributes:
        sampler: The ref of a sampler that serves the snapshot.
        policy: The policy's id.
        snapshot: The snapshot's handle. A phase is bound to it before it begins.
        params: How to sample; seeds are derived per turn.
        trainable: Whether the turns may enter datums and statistics; False for a frozen opponent.
        context_length: Tokens of prompt and reply together; None leaves the limit to the sampler.
        max_prompt: The most tokens of a prompt; None for no limit.
        overflow: "refuse" a longer prompt, or "keep_last" exactly its last tokens.

    Raises:
        ConfigError: No reply would fit, or a trainer couldn't reproduce the distribution that is sampled from.
    """

    sampler: SamplesTokens
    policy: str
    snapshot: str
    params: SamplingParams = field(default_factory=SamplingParams)
    trainable: bool = True
    context_length: int | None = None
    max_prompt: int | None = None
    overflow: Overflow = "refuse"

    def __post_init__(self) -> None:
        if self.max_prompt is not None and self.context_length is not None and self.max_prompt >= self.context_length:
            raise ConfigError(
                f"max_prompt is {self.max_prompt} and context_length is {self.context_length}; a smaller max_prompt is "
                "needed to leave room for a reply"
            )
        if self.trainable and (self.params.biases or self.params.min_p > 0 or self.params.grammar is not None):
            raise ConfigError(
                "params change the distribution by min_p, penalties, logit_bias or a grammar, which a trainer can't "
                "reproduce; sample a trainable seat without them"
            )
