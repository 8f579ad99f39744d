"""What a client of an OpenAI-compatible API asks and what it is answered, whichever of the API's forms it speaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from tinker_actors.data import Message, TurnEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """How answers are to be sampled and shown; None stands for what was not asked.

    Attributes:
        model: Name of the model, as the client wrote it.
        n: How many answers.
        max_tokens: The most new tokens of each.
        temperature: As asked.
        top_p: As asked.
        top_k: As asked; -1 for all tokens.
        min_p: As asked.
        presence_penalty: As asked.
        frequency_penalty: As asked.
        repetition_penalty: As asked.
        logit_bias: Pairs of a token id and what is added to its logit.
        stop: Further strings and token ids that end an answer.
        ignore_eos: Whether the model's own ends don't end one.
        seed: As asked.
        logprobs: Whether the answer is to show the log-prob of every token.
        top_logprobs: How many of the likeliest tokens it is to show with each.
        prompt_logprobs: How many of the likeliest tokens to show with each token of the prompt and its log-prob; None
            for nothing.
        token_ids: Whether it is to show the ids of its tokens and of the prompt's.
    """

    model: str = ""
    n: int = 1
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    stop: tuple[str | int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: bool = False
    top_logprobs: int = 0
    prompt_logprobs: int | None = None
    token_ids: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(Wanted):
    """A request for answers to a conversation.

    Attributes:
        messages: The whole conversation.
        tools: Schemas of the tools that the model is shown: `{"type": "function", "function": {...}}` each.
        must_call: Names of the tools of which it must call one; empty where it may do as it likes.
        parallel: Whether it may call several.
        schema: JSON schema that its text must fit; None for free text.
        schema_field: Where the request says so.
        previous: Id of the answer that the messages go on from, in place of the conversation up to there.
        store: Whether a later request may go on from the answer by its id.
    """

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    must_call: tuple[str, ...] = ()
    parallel: bool = True
    schema: Mapping[str, Any] | None = None
    schema_field: str = "response_format"
    previous: str | None = None
    store: bool = True

    @property
    def constrained_by(self) -> str | None:
        """The field because of which the text follows a grammar, if it does."""
        if self.must_call:
            return "tool_choice"
        return None if self.schema is None else self.schema_field


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionAsked(Wanted):
    """A request for texts that go on from others.

    Attributes:
        prompts: Each as text or as token ids.
        echo: Whether the answers begin with their prompts.
    """

    prompts: tuple[str | tuple[int, ...], ...]
    echo: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenShown:
    """A token as clients see it.

    Attributes:
        token: Its id.
        text: Its text.
        data: Its bytes, which may be part of a character.
        logprob: Natural log-prob; None for a prompt's first token.
        top: The likeliest tokens at its place, the likeliest first.
    """

    token: int
    text: str
    data: bytes
    logprob: float | None
    top: tuple[TokenShown, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One answer of the model.

    Attributes:
        message: The assistant's message: its text, and the calls of tools that were read from it.
        end: How it ended.
        tokens: The sampled ids, a sampled stop token included.
        shown: The tokens with their log-probs, if they were asked for.
    """

    message: Message
    end: TurnEnd
    tokens: tuple[int, ...]
    shown: tuple[TokenShown, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """Answers have begun.

    Attributes:
        id: Unique; letters and digits.
        model: Who answers.
        prompt: The prompt's token ids.
        text: The prompt's text, where it is a text that is gone on from.
        first: Number of the first of the answers to this prompt.
        prompt_shown: The prompt's tokens with their log-probs, if they were asked for.
    """

    id: str
    model: str
    prompt: tuple[int, ...]
    text: str = ""
    first: int = 0
    prompt_shown: tuple[TokenShown, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The next part of an answer that is told as it is sampled; the parts make up the whole.

    Attributes:
        index: Which answer.
        text: What its text goes on with.
        tokens: The ids sampled since the part before.
        shown: The same with their log-probs, if they were asked for.
        choice: The whole answer, with its last part.
    """

    index: int
    text: str = ""
    tokens: tuple[int, ...] = ()
    shown: tuple[TokenShown, ...] = ()
    choice: Choice | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered(Begun):
    """All answers to one prompt.

    Attributes:
        choices: The answers.
        cached_tokens: Prompt tokens that needn't be computed.
    """

    choices: tuple[Choice, ...]
    cached_tokens: int = 0


Tell: TypeAlias = Callable[[Begun | Piece], None]
"""Is told that answers begin, and then each part of them."""


class Answers(Protocol):
    """Who answers."""

    async def answer(self, asked: Asked, tell: Tell | None, /) -> Answered:
        """Answer; cancelled where the client goes away.

        Args:
            asked: What is asked.
            tell: Told of the answer while it is sampled, if it is to be.

        Raises:
            ApiError: The request is refused.
        """
        ...


class Completes(Protocol):
    """Who goes on from texts."""

    async def complete(self, asked: CompletionAsked, tell: Tell | None, /) -> tuple[Answered, ...]:
        """As `Answers.answer`, for each prompt."""
        ...
