"""Requests and samples under way inside a sampler."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tinker_actors.data import TurnEnd
from tinker_actors.sampling.requests import Sample, SamplingReply, SamplingRequest
from tinker_actors.sampling.stops import Decoder, StopStrings, cut_at_stop

if TYPE_CHECKING:
    from tinker_actors.sampling.residents import Resident


@dataclass(slots=True, kw_only=True, eq=False)
class Ticket:
    """A request under way.

    Attributes:
        request: The request.
        resident: The snapshot that it is pinned to.
        seed: The request's seed, or a fresh one.
        samples: Done so far, by sample index.
        missing: How many samples are not done.
        closed: Whether nobody waits for it any more: answered, failed or cancelled.
        party: What it shares batches with: requests that were submitted together have one object in common and no
            other request enters their batches; None for those that were submitted one by one.
    """

    request: SamplingRequest
    resident: Resident
    seed: int
    samples: list[Sample | None]
    missing: int
    closed: bool = False
    party: object | None = None

    def reply(self) -> SamplingReply:
        """The answer, once no sample is missing."""
        return SamplingReply(
            samples=tuple(sample for sample in self.samples if sample is not None),
            snapshot=self.resident.handle,
            snapshot_step=self.resident.step,
            prompt_tokens=len(self.request.prompt),
            seed=self.seed,
        )


@dataclass(slots=True, kw_only=True, eq=False)
class Row:
    """One sample under way.

    Attributes:
        ticket: The request that it belongs to.
        index: The sample's index within its request.
        limit: How many tokens may be drawn, at least 1.
        limit_end: How the sample ends when the limit is reached.
        stop_ids: Tokens that end it.
        stop_strings: Watches the text; None without stop strings.
        tokens: Drawn so far.
        logprobs: Of `tokens`.
        end: How the sample ended; None while it goes on, or if its logits were not finite.
    """

    ticket: Ticket
    index: int
    limit: int
    limit_end: TurnEnd
    stop_ids: frozenset[int]
    stop_strings: StopStrings | None
    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    end: TurnEnd | None = None

    @property
    def slot(self) -> int:
        """Which adapter of its network samples it."""
        return self.ticket.resident.slot

    def take(self, token: int, logprob: float) -> bool:
        """Add a drawn token; whether the row is done."""
        if not math.isfinite(logprob):
            return True
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if token in self.stop_ids or (self.stop_strings is not None and self.stop_strings.push(token)):
            self.end = TurnEnd.STOP
        elif len(self.tokens) >= self.limit:
            self.end = self.limit_end
        return self.end is not None

    def sample(self, decoder: Decoder) -> Sample:
        """The finished sample; every token stays, only the text is cut."""
        assert self.end is not None
        tokens = tuple(self.tokens)
        text = decoder.decode(tokens[:-1] if tokens and tokens[-1] in self.stop_ids else tokens)
        if self.stop_strings is not None and self.end is TurnEnd.STOP:
            text = cut_at_stop(text, self.ticket.request.params.stop_strings)
        return Sample(tokens=tokens, logprobs=tuple(self.logprobs), end=self.end, text=text)


def rows_of(ticket: Ticket, *, context_length: int, stop_ids: frozenset[int], decoder: Decoder) -> list[Row]:
    """The rows of a request whose prompt leaves room for at least one token."""
    params = ticket.request.params
    room = context_length - len(ticket.request.prompt)
    overflows = room < params.max_tokens
    strings = params.stop_strings
    return [
        Row(
            ticket=ticket,
            index=index,
            limit=room if overflows else params.max_tokens,
            limit_end=TurnEnd.CONTEXT_OVERFLOW if overflows else TurnEnd.LENGTH,
            stop_ids=stop_ids,
            stop_strings=StopStrings(decoder, strings) if strings else None,
        )
        for index in range(ticket.request.num_samples)
    ]
