"""Samples as answers: told in parts while they are drawn, and as a whole in the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Protocol

from tinker_actors.data import Message
from tinker_actors.environments.openai.asked import Answered, Begun, Choice, Piece, Tell, TokenShown, Wanted
from tinker_actors.environments.openai.unfolding import Unfolding
from tinker_actors.environments.policy_seat import SamplesTokens
from tinker_actors.errors import ModelError
from tinker_actors.models.tokenizer import Tokenizer
from tinker_actors.sampling.requests import Sample, SampledToken, SamplingParams, SamplingReply, SamplingRequest
from tinker_actors.sampling.stops import stop_ids_of


async def sampled(
    sampler: SamplesTokens, request: SamplingRequest, tell: Callable[[SampledToken], None] | None
) -> SamplingReply:
    """Sample; each token is told as soon as it is drawn, if it is to be and the sampler can."""
    streams = getattr(sampler, "stream", None)
    if tell is None or streams is None:
        return await sampler.sample(request)
    async with aclosing(streams.sample_tokens(request)) as drawn:
        async for token in drawn:
            if isinstance(token, SamplingReply):
                return token
            tell(token)
    raise AssertionError("a stream of tokens ends with the reply")


class ReadsCalls(Protocol):
    """Finds the calls of tools in what a model says."""

    @property
    def tools(self) -> object:
        """Falsy where there are none."""
        ...

    def begins(self, text: str, /) -> int:
        """Where the first call begins, or may begin, in a text that may go on; its length if none has."""
        ...

    def message(self, text: str, id: str, /) -> Message:
        """The assistant's message."""
        ...


def choices_of(
    samples: Sequence[Sample], *, id: str, reader: ReadsCalls, wanted: Wanted, tokenizer: Tokenizer
) -> tuple[Choice, ...]:
    """The samples as answers.

    Args:
        samples: By index.
        id: The answer's.
        reader: Reads the calls.
        wanted: What is to be shown.
        tokenizer: The model's.
    """
    return tuple(
        Choice(
            message=reader.message(sample.text, f"{id}_{index}" if index else id),
            end=sample.end,
            tokens=sample.tokens,
            shown=shown_tokens(sample, tokenizer) if wanted.logprobs else (),
        )
        for index, sample in enumerate(samples)
    )


def shown_tokens(sample: Sample, tokenizer: Tokenizer) -> tuple[TokenShown, ...]:
    """A sample's tokens as clients see them."""
    tops = sample.top_logprobs or ((),) * len(sample.tokens)
    drawn = zip(sample.tokens, sample.logprobs, tops, strict=True)
    return tuple(_shown(token, logprob, top, tokenizer) for token, logprob, top in drawn)


def shown_prompt(prompt: Sequence[int], reply: SamplingReply, tokenizer: Tokenizer) -> tuple[TokenShown, ...]:
    """A prompt's tokens as clients see them."""
    tops: list[Sequence[tuple[int, float]]] = [()] * len(prompt)
    if reply.prompt_scores is not None and len(reply.prompt_scores.top_tokens):
        found = zip(reply.prompt_scores.top_tokens.tolist(), reply.prompt_scores.top_logprobs.tolist(), strict=True)
        tops = [(), *(tuple(zip(tokens, values, strict=True)) for tokens, values in found)]
    places = zip(prompt, (None, *reply.prompt_logprobs), tops, strict=True)
    return tuple(_shown(token, value, top, tokenizer) for token, value, top in places)


class Telling:
    """Tells the answers to one prompt while they are drawn.

    Args:
        begun: What is told of them first.
        tell: Whom.
        tokenizer: The model's.
        params: How they are sampled.
        reader: Reads the calls of tools: text is told up to where the first may begin.
        wanted: What is to be shown.
    """

    def __init__(
        self,
        begun: Begun,
        tell: Tell,
        *,
        tokenizer: Tokenizer,
        params: SamplingParams,
        reader: ReadsCalls,
        wanted: Wanted,
    ) -> None:
        self._begun: Begun | None = begun
        self._first = begun.first
        self._tell, self._tokenizer, self._reader, self._wanted = tell, tokenizer, reader, wanted
        stop_ids = stop_ids_of(params, tokenizer)
        self._saying = [
            _Saying(Unfolding(tokenizer, stops=params.stop_strings, stop_ids=stop_ids)) for _ in range(wanted.n)
        ]

    def drawn(self, token: SampledToken) -> None:
        """Tell what a token adds."""
        self._begin()
        saying = self._saying[token.index]
        saying.tokens.append(token.token)
        if self._wanted.logprobs:
            saying.shown.append(_shown(token.token, token.logprob, token.top, self._tokenizer))
        fresh = saying.unfolding.push(token.token)
        if self._reader.tools and fresh:
            # of text beside calls, white space at its ends is no part of the message
            saying.text += fresh
            settled = saying.text[: self._reader.begins(saying.text)].strip()
            fresh = settled[saying.told :]
        if fresh:
            self._tell(saying.piece(self._first + token.index, fresh))

    def ended(self, answered: Answered) -> None:
        """Tell what has not been told yet."""
        self._begin()
        for index, (saying, choice) in enumerate(zip(self._saying, answered.choices, strict=True)):
            saying.shown += choice.shown[saying.count + len(saying.tokens) :]
            saying.tokens += choice.tokens[saying.count + len(saying.tokens) :]
            self._tell(saying.piece(self._first + index, choice.message.content[saying.told :], choice))

    def _begin(self) -> None:
        begun, self._begun = self._begun, None
        if begun is not None:
            self._tell(begun)


class _Saying:
    """How much of one answer was told."""

    def __init__(self, unfolding: Unfolding) -> None:
        self.unfolding = unfolding
        self.text = ""
        self.told = 0  # characters
        self.count = 0  # tokens
        self.tokens: list[int] = []
        self.shown: list[TokenShown] = []

    def piece(self, index: int, text: str, choice: Choice | None = None) -> Piece:
        """The next part: what was drawn and not told."""
        self.told += len(text)
        self.count += len(self.tokens)
        tokens, shown = tuple(self.tokens), tuple(self.shown)
        self.tokens, self.shown = [], []
        return Piece(index=index, text=text, tokens=tokens, shown=shown, choice=choice)


def pieces_of(answered: Answered) -> list[Begun | Piece]:
    """An answer as if it had been told in one part."""
    begun = Begun(
        id=answered.id,
        model=answered.model,
        prompt=answered.prompt,
        text=answered.text,
        first=answered.first,
        prompt_shown=answered.prompt_shown,
    )
    return [
        begun,
        *(
            Piece(
                index=answered.first + index,
                text=choice.message.content,
                tokens=choice.tokens,
                shown=choice.shown,
                choice=choice,
            )
            for index, choice in enumerate(answered.choices)
        ),
    ]


def _shown(token: int, logprob: float | None, top: Sequence[tuple[int, float]], tokenizer: Tokenizer) -> TokenShown:
    # models may have more rows than their tokenizer has tokens
    try:
        text, data = tokenizer.token_text(token), tokenizer.token_bytes(token)
    except ModelError:
        text, data = "", b""
    return TokenShown(
        token=token,
        text=text,
        data=data,
        logprob=logprob,
        top=tuple(_shown(other, value, (), tokenizer) for other, value in top),
    )
