"""What a client of an OpenAI-compatible API asks and what it is answered, whichever of the API's forms it speaks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from tinker_actors.data import Message, TurnEnd
from tinker_actors.errors import TinkerActorsError


class ApiError(TinkerActorsError):
    """A request is refused, in the form in which the OpenAI API says so.

    Attributes:
        status: Of the HTTP response.
        type: The kind of error, such as `invalid_request_error`.
        param: The field of the request that is to blame, if one is.
        code: What clients tell errors apart by.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.type, self.param, self.code = status, type, param, code

    @property
    def body(self) -> dict[str, Any]:
        """The response's body."""
        return {"error": {"message": str(self), "type": self.type, "param": self.param, "code": self.code}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request for one answer of the model.

    Attributes:
        messages: The whole conversation.
        tools: Schemas of the tools that the model may call: `{"type": "function", "function": {...}}` each.
        max_tokens: The most new tokens; None for what the answerer allows.
        temperature: As asked; None if it was not.
        top_p: As asked; None if it was not.
        stop: Further stop strings.
        seed: As asked; None if it was not.
        logprobs: Whether the answer is to show the log-prob of every token.
        top_logprobs: How many of the likeliest tokens it is to show with each.
        token_ids: Whether it is to show the ids of its tokens and of the prompt's.
        previous: Id of the answer that the messages go on from, in place of the conversation up to there.
    """

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    logprobs: bool = False
    top_logprobs: int = 0
    token_ids: bool = False
    previous: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenShown:
    """A sampled token as clients see it.

    Attributes:
        text: Its text.
        logprob: Natural log-prob.
        top: The likeliest tokens at its place, as text and log-prob.
    """

    text: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """One answer of the model.

    Attributes:
        id: Unique; letters and digits.
        model: Who answered.
        message: The assistant's message: its text, and the calls of tools that were read from it.
        end: How it ended.
        prompt: The prompt's token ids.
        tokens: The sampled ids, a sampled stop token included.
        shown: The tokens with their log-probs, if they were asked for.
    """

    id: str
    model: str
    message: Message
    end: TurnEnd
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    shown: tuple[TokenShown, ...] = field(default=())


class Answers(Protocol):
    """Who stands behind a key."""

    @property
    def model(self) -> str:
        """The name of the model that answers."""
        ...

    async def answer(self, asked: Asked, /) -> Answered:
        """Answer; cancelled where the client goes away.

        Raises:
            ApiError: The request is refused.
        """
        ...


class Body:
    """A request's JSON object, field by field; a field of a wrong type is refused by name."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields

    @classmethod
    def read(cls, data: bytes) -> Body:
        """The body of a request.

        Raises:
            ApiError: It is no JSON object.
        """
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ApiError(f"the body is not JSON that can be read: {error}") from None
        if not isinstance(value, dict):
            raise ApiError(f"the body is a JSON {type(value).__name__}; an object is needed")
        return cls(cast("dict[str, Any]", value))

    def get(self, name: str, *kinds: type, needed: str) -> Any:
        """A field, or None where it is null or not there.

        Raises:
            ApiError: It is of another type.
        """
        value = self._fields.get(name)
        if value is None:
            return None
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise ApiError(f"{name} is {shortened(value)}; {needed} is needed", param=name)
        return value

    def whole(self, name: str, *, least: int) -> int | None:
        """A whole number that is at least `least`."""
        value = self.get(name, int, needed=f"an integer >= {least}")
        if value is not None and value < least:
            raise ApiError(f"{name} is {value}; an integer >= {least} is needed", param=name)
        return value

    def number(self, name: str, least: float, most: float) -> float | None:
        """A number in [least, most]."""
        value = self.get(name, int, float, needed="a number")
        if value is not None and not least <= value <= most:
            raise ApiError(f"{name} is {value}; a number from {least:g} to {most:g} is needed", param=name)
        return value

    def flag(self, name: str) -> bool | None:
        """True or false."""
        return self.get(name, bool, needed="true or false")

    def only(self, name: str, *values: Any, reason: str) -> None:
        """Refuse a field that isn't left out and has none of these values, which change nothing."""
        value = self._fields.get(name)
        if value is not None and value not in values:
            allowed = ", ".join(json.dumps(entry) for entry in values)
            raise ApiError(
                f"{name} is {shortened(value)}, which this endpoint doesn't serve: {reason}; leave it out"
                + (f" or give {allowed}" if values else ""),
                param=name,
                code="unsupported_parameter",
            )

    def refuse_others(self, known: frozenset[str]) -> None:
        """Refuse fields that would change the answer in a way that nobody here knows."""
        for name, value in self._fields.items():
            if name not in known and value is not None and value not in ({}, []):
                raise ApiError(
                    f"{name} is {shortened(value)}, but this endpoint has no such field; leave it out",
                    param=name,
                    code="unsupported_parameter",
                )


def shortened(value: Any) -> str:
    """A value in an error's text."""
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:120]}..."
