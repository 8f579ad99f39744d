"""Requests and samples under way inside a sampler."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tinker_actors.data import ImageChunk, TurnEnd
from tinker_actors.sampling.prefixes import Stretch
from tinker_actors.sampling.requests import Sample, SamplingReply, SamplingRequest
from tinker_actors.sampling.stops import Decoder, StopStrings, cut_at_stop

if TYPE_CHECKING:
    import torch

    from tinker_actors.sampling.residents import Resident
    from tinker_actors.sampling.scores import Scores


@dataclass(slots=True, kw_only=True, eq=False)
class Ticket:
    """A request under way.

    Attributes:
        request: The request.
        resident: The snapshot that it is pinned to.
        seed: The request's seed, or a fresh one.
        samples: Done so far, by sample index.
        missing: How many samples are not done.
        streams: Whether its tokens are told as they are drawn.
        arrived: When it was submitted, by `time.perf_counter`.
        closed: Whether nobody waits for it any more: answered, failed or cancelled.
        begun: Whether one of its samples ever had a place.
        cached: Prompt tokens that needn't be computed for its first sample.
        scores: Of the tokens of prompt and targets, as far as they are known; None if none are wanted.
    """

    request: SamplingRequest
    resident: Resident
    seed: int
    samples: list[Sample | None]
    missing: int
    streams: bool = False
    arrived: float = field(default_factory=time.perf_counter)
    closed: bool = False
    begun: bool = False
    cached: int = 0
    scores: Scores | None = None

    @property
    def lane(self) -> str:
        """Whose share of the sampler it takes."""
        return self.request.job or self.resident.handle

    def reply(self) -> SamplingReply:
        """The answer, once no sample is missing."""
        scores = self.scores
        return SamplingReply(
            samples=tuple(sample for sample in self.samples if sample is not None),
            snapshot=self.resident.handle,
            snapshot_step=self.resident.step,
            prompt_tokens=len(self.request.prompt),
            seed=self.seed,
            prompt_logprobs=scores.prompt_logprobs() if scores else (),
            prompt_scores=scores.prompt_scores() if scores else None,
            target_logprobs=scores.target_logprobs() if scores else (),
            cached_tokens=self.cached,
        )


@dataclass(slots=True, kw_only=True, eq=False)
class Row:
    """One sample under way.

    Attributes:
        ticket: The request that it belongs to.
        index: The sample's index within its request.
        limit: How many tokens may be drawn; 0 where targets are scored.
        limit_end: How the sample ends when the limit is reached.
        stop_ids: Tokens that end it.
        stop_strings: Watches the text; None without stop strings.
        sequence: Prompt, targets and what was drawn.
        given: How many of them were given.
        images: The prompt's, by position.
        logprobs: Of the tokens drawn.
        tops: The most likely tokens at each of their places.
        stretch: Where its keys and values are; None while it waits.
        followers: Rows of the same prompt that take over its keys and values once all are computed.
        number: When it last got its place, by order.
        grammar: What constrains it.
        positions: Rotary positions of what was given, shape (3, given + 1), in a model that reads images.
        drawn_at: When its last token was drawn.
        end: How the sample ended; None while it goes on, or if its logits were not finite.
    """

    ticket: Ticket
    index: int
    limit: int
    limit_end: TurnEnd
    stop_ids: frozenset[int]
    stop_strings: StopStrings | None
    sequence: list[int]
    given: int
    images: Sequence[tuple[int, ImageChunk]] = ()
    logprobs: list[float] = field(default_factory=list[float])
    tops: list[tuple[tuple[int, float], ...]] = field(default_factory=list[tuple[tuple[int, float], ...]])
    stretch: Stretch | None = None
    followers: list[Row] = field(default_factory=list["Row"])
    number: int = 0
    grammar: Any = None
    positions: torch.Tensor | None = None
    drawn_at: float = 0.0
    end: TurnEnd | None = None

    @property
    def tokens(self) -> list[int]:
        """What was drawn."""
        return self.sequence[self.given :]

    @property
    def drawn(self) -> int:
        """How many tokens were drawn."""
        return len(self.sequence) - self.given

    @property
    def pending(self) -> int:
        """Tokens that are not computed; one while it draws."""
        return len(self.sequence) - (self.stretch.held if self.stretch is not None else 0)

    def take(self, token: int, logprob: float) -> bool:
        """Add a drawn token; whether the row is done."""
        if not math.isfinite(logprob):
            return True
        self.sequence.append(token)
        self.logprobs.append(logprob)
        if token in self.stop_ids or (self.stop_strings is not None and self.stop_strings.push(token)):
            self.end = TurnEnd.STOP
        elif self.drawn >= self.limit:
            self.end = self.limit_end
        elif self.grammar is not None and self.grammar.advance(token):
            self.end = TurnEnd.STOP
        return self.end is not None

    def sample(self, decoder: Decoder) -> Sample:
        """The finished sample; every token stays, only the text is cut."""
        assert self.end is not None
        tokens = tuple(self.tokens)
        text = decoder.decode(tokens[:-1] if tokens and tokens[-1] in self.stop_ids else tokens)
        if self.stop_strings is not None and self.end is TurnEnd.STOP:
            text = cut_at_stop(text, self.ticket.request.params.stop_strings)
        return Sample(
            tokens=tokens, logprobs=tuple(self.logprobs), end=self.end, text=text, top_logprobs=tuple(self.tops)
        )


def rows_of(ticket: Ticket, *, context_length: int, stop_ids: frozenset[int], decoder: Decoder) -> list[Row]:
    """The rows of a request whose prompt leaves room for at least one token, or whose targets fit."""
    request = ticket.request
    params, given = request.params, (*request.prompt, *request.targets)
    room = 0 if request.targets else context_length - len(given)
    overflows = room < params.max_tokens and not request.targets
    strings = params.stop_strings
    images: list[tuple[int, ImageChunk]] = []
    start = 0
    for chunk in request.input.chunks if request.images else ():
        if isinstance(chunk, ImageChunk):
            images.append((start, chunk))
        start += len(chunk)
    return [
        Row(
            ticket=ticket,
            index=index,
            limit=min(room, params.max_tokens),
            limit_end=TurnEnd.CONTEXT_OVERFLOW if overflows else TurnEnd.LENGTH,
            stop_ids=stop_ids,
            stop_strings=StopStrings(decoder, strings) if strings else None,
            sequence=list(given),
            given=len(given),
            images=images,
        )
        for index in range(request.num_samples)
    ]
