"""Completions: texts that go on from others, without a chat template."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, cast

from tinker_actors.environments.openai.asked import Answered, Begun, CompletionAsked, Piece, TokenShown
from tinker_actors.environments.openai.body import Body
from tinker_actors.environments.openai.chat import finish_reason, prompt_logprobs, sse, usage_of
from tinker_actors.environments.openai.errors import ApiError, shortened, unsupported
from tinker_actors.environments.openai.wanted import MOST_TOPS, SAMPLING, WITHOUT_EFFECT, sampling_fields

MOST_PROMPTS = 128
DEFAULT_TOKENS = 16
"""Of the API, where `max_tokens` is left out."""

_KNOWN = WITHOUT_EFFECT | SAMPLING | {"best_of", "echo", "logprobs", "max_tokens", "prompt", "suffix"}


def read_completion(body: Body) -> CompletionAsked:
    """What a request for a completion asks.

    Raises:
        ApiError: A field can't be read, or can't be served.
    """
    body.refuse_others(_KNOWN)
    body.only("suffix", "", reason="texts are gone on from at their end")
    fields = sampling_fields(body)
    body.only("best_of", fields["n"], reason="all that is sampled is answered")
    limit, echo = body.whole("max_tokens", least=0), bool(body.flag("echo"))
    if limit == 0 and not echo:
        raise ApiError("max_tokens is 0; an integer >= 1 is needed where echo is not true", param="max_tokens")
    tops = body.whole("logprobs", least=0, most=MOST_TOPS)
    if echo and tops is not None and body.flag("stream"):
        raise unsupported("stream", True, "the log-probs of an echoed prompt are there once the answer is")
    return CompletionAsked(
        prompts=_prompts(body),
        echo=echo,
        max_tokens=DEFAULT_TOKENS if limit is None else limit,
        logprobs=tops is not None,
        top_logprobs=tops or 0,
        **{**fields, "prompt_logprobs": _prompt_tops(fields["prompt_logprobs"], tops if echo else None)},
    )


def _prompts(body: Body) -> tuple[str | tuple[int, ...], ...]:
    given = body.get("prompt", str, list, needed="text, token ids, or a list of either")
    if isinstance(given, str):
        given = [given]
    entries: list[Any] = [given] if given and all(type(entry) is int for entry in given) else given or []
    if not 0 < len(entries) <= MOST_PROMPTS:
        raise ApiError(f"prompt has {len(entries)} prompts; 1 to {MOST_PROMPTS} are needed", param="prompt")
    return tuple(_prompt(entry) for entry in entries)


def _prompt_tops(asked: int | None, echoed: int | None) -> int | None:
    """How many likely tokens each token of the prompt is to come with; None for no log-probs."""
    return max((count for count in (asked, echoed) if count is not None), default=None)


def _prompt(entry: Any) -> str | tuple[int, ...]:
    if isinstance(entry, str) and entry:
        return entry
    if isinstance(entry, list) and entry and all(type(token) is int and token >= 0 for token in entry):
        return tuple(cast("list[int]", entry))
    raise ApiError(f"prompt has {shortened(entry)}; text or token ids that are not empty are needed", param="prompt")


def completion(answers: Sequence[Answered], asked: CompletionAsked, created: int) -> dict[str, Any]:
    """The response to a request for completions."""
    choices: list[dict[str, Any]] = []
    for answered in answers:
        for index, choice in enumerate(answered.choices):
            shown = (*answered.prompt_shown, *choice.shown) if asked.echo else choice.shown
            choices.append(
                {
                    "index": answered.first + index,
                    "text": (answered.text if asked.echo else "") + choice.message.content,
                    "logprobs": _logprobs(shown) if asked.logprobs else None,
                    "finish_reason": finish_reason(choice),
                    **({"prompt_logprobs": prompt_logprobs(answered)} if asked.prompt_logprobs is not None else {}),
                    **_ids(asked, token_ids=choice.tokens, prompt_token_ids=answered.prompt),
                }
            )
    return {**_head(answers[0], created), "choices": choices, "usage": usage_of(*answers)}


class CompletionEvents:
    """The same as a stream of events.

    Args:
        asked: The request.
        created: When it came, in seconds since the epoch.
        usage: Whether the last event counts the tokens.
    """

    def __init__(self, asked: CompletionAsked, created: int, *, usage: bool) -> None:
        self._asked, self._created, self._usage = asked, created, usage
        self._head: dict[str, Any] = {}
        self._offsets: dict[int, int] = {}

    def told(self, told: Begun | Piece) -> Iterator[str]:
        """The events of a part."""
        if isinstance(told, Begun):
            self._head = _head(told, self._created)
            if self._asked.echo or self._asked.token_ids:
                text = told.text if self._asked.echo else ""
                for index in range(told.first, told.first + self._asked.n):
                    self._offsets[index] = len(text)
                    yield self._event({"index": index, "text": text, **_ids(self._asked, prompt_token_ids=told.prompt)})
            return
        if not (told.text or told.tokens or told.choice):
            return
        offset = self._offsets.get(told.index, 0)
        self._offsets[told.index] = offset + sum(len(token.text) for token in told.shown)
        yield self._event(
            {
                "index": told.index,
                "text": told.text,
                "logprobs": _logprobs(told.shown, offset) if self._asked.logprobs else None,
                "finish_reason": None if told.choice is None else finish_reason(told.choice),
                **_ids(self._asked, token_ids=told.tokens),
            }
        )

    def done(self, answers: Sequence[Answered]) -> Iterator[str]:
        """The events at the end."""
        if self._usage:
            yield sse({**self._head, "choices": [], "usage": usage_of(*answers)})
        yield "data: [DONE]\n\n"

    def failed(self, error: ApiError) -> Iterator[str]:
        """The event of an error amid the answer."""
        yield sse(error.body)

    def _event(self, choice: dict[str, Any]) -> str:
        nothing = {"usage": None} if self._usage else {}
        return sse({**self._head, "choices": [{"logprobs": None, "finish_reason": None, **choice}], **nothing})


def _head(begun: Begun, created: int) -> dict[str, Any]:
    return {"id": f"cmpl-{begun.id}", "object": "text_completion", "created": created, "model": begun.model}


def _ids(asked: CompletionAsked, **ids: tuple[int, ...]) -> dict[str, Any]:
    return {name: list(tokens) for name, tokens in ids.items()} if asked.token_ids else {}


def _tops(token: TokenShown) -> dict[str, float] | None:
    """The likeliest tokens and the token itself, as the API shows them."""
    return None if token.logprob is None else {likely.text: likely.logprob or 0.0 for likely in (*token.top, token)}


def _logprobs(shown: Sequence[TokenShown], offset: int = 0) -> dict[str, Any]:
    lengths = (len(token.text) for token in shown)
    return {
        "tokens": [token.text for token in shown],
        "token_logprobs": [token.logprob for token in shown],
        "top_logprobs": [_tops(token) for token in shown],
        "text_offset": list(itertools.accumulate(lengths, initial=offset))[: len(shown)],
    }
