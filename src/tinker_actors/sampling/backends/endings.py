"""How samples end, told from their tokens by this package's own rules, whichever engine drew them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tinker_actors.data import TurnEnd
from tinker_actors.errors import SamplingError
from tinker_actors.models.tokenizer import Tokenizer
from tinker_actors.sampling.requests import Sample, SamplingRequest
from tinker_actors.sampling.stops import PlainText, StopStrings, cut_at_stop, stop_ids_of

Tops = Sequence[tuple[tuple[int, float], ...]]


class Endings:
    """Cuts what an engine drew where a sample ends, and says how it ended.

    An engine may go on past a stop that it doesn't know of. What it drew after it is dropped: the tokens before it are
    distributed as if it had stopped there.

    Args:
        tokenizer: The base model's.
        context_length: Longest prompt and reply together, in tokens; None if that isn't known.
    """

    def __init__(self, tokenizer: Tokenizer, context_length: int | None) -> None:
        self._tokenizer, self._context_length = tokenizer, context_length
        self._text = PlainText(tokenizer)

    def stop_ids(self, request: SamplingRequest) -> frozenset[int]:
        """The tokens that end a request's samples."""
        return stop_ids_of(request.params, self._tokenizer)

    def room(self, request: SamplingRequest) -> int:
        """How many tokens may be drawn."""
        if self._context_length is None:
            return request.params.max_tokens
        return min(request.params.max_tokens, self._context_length - len(request.prompt))

    def sample(
        self, request: SamplingRequest, tokens: Sequence[int], logprobs: Sequence[float], tops: Tops, *, stopped: bool
    ) -> Sample:
        """The finished sample.

        Args:
            request: What was asked.
            tokens: What was drawn.
            logprobs: Of each token.
            tops: The most likely tokens at each place, if asked for.
            stopped: Whether the engine says that a stop ended it.

        Raises:
            SamplingError: There is not one finite log-prob for each token, or the sample is neither stopped nor at its
                limit.
        """
        if len(logprobs) != len(tokens) or not all(map(math.isfinite, logprobs)):
            raise SamplingError(f"the engine gave {len(tokens)} tokens and not as many finite log-probs: {logprobs!r}")
        params, stop_ids = request.params, self.stop_ids(request)
        strings = StopStrings(self._text, params.stop_strings) if params.stop_strings else None
        room = self.room(request)
        end: TurnEnd | None = None
        count = 0
        for token in tokens:
            count += 1
            if token in stop_ids or (strings is not None and strings.push(token)):
                end = TurnEnd.STOP
                break
        if end is None:
            if stopped:
                end = TurnEnd.STOP
            elif count >= room:
                end = TurnEnd.CONTEXT_OVERFLOW if room < params.max_tokens else TurnEnd.LENGTH
            else:
                raise SamplingError(f"the engine gave up a sample after {count} of {room} tokens")
        kept = tuple(tokens[:count])
        text = self._text.decode(kept[:-1] if kept and kept[-1] in stop_ids else kept)
        if end is TurnEnd.STOP and params.stop_strings:
            text = cut_at_stop(text, params.stop_strings)
        return Sample(
            tokens=kept, logprobs=tuple(logprobs[:count]), end=end, text=text, top_logprobs=tuple(tops[:count])
        )
