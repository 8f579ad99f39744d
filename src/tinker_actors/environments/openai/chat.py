"""Chat completions: from a request's body to what is asked, and from an answer to the response and its events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import orjson

from tinker_actors.data import TurnEnd
from tinker_actors.environments.openai.asked import Answered, Asked, Begun, Choice, Piece, TokenShown
from tinker_actors.environments.openai.body import Body
from tinker_actors.environments.openai.errors import ApiError, shortened
from tinker_actors.environments.openai.messages import read_message, with_names
from tinker_actors.environments.openai.tools import function_schema, tool_fields
from tinker_actors.environments.openai.wanted import MOST_TOPS, SAMPLING, WITHOUT_EFFECT, sampling_fields

_KNOWN = (
    WITHOUT_EFFECT
    | SAMPLING
    | {
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "modalities",
        "parallel_tool_calls",
        "response_format",
        "store",
        "tool_choice",
        "tools",
        "top_logprobs",
    }
)


def read_chat(body: Body) -> Asked:
    """What a request for a chat completion asks.

    Raises:
        ApiError: A field can't be read, or can't be served.
    """
    body.refuse_others(_KNOWN)
    body.only("modalities", ["text"], reason="the model writes text")
    messages = body.get("messages", list, needed="a list of messages")
    if not messages:
        raise ApiError("messages is empty; at least one message is needed", param="messages")
    tools = [_tool(entry, place) for place, entry in enumerate(body.get("tools", list, needed="a list") or ())]
    limit = body.whole("max_completion_tokens", least=1) or body.whole("max_tokens", least=1)
    return Asked(
        messages=with_names(read_message(entry, place) for place, entry in enumerate(messages)),
        max_tokens=limit,
        schema=schema_of(body.get("response_format", dict, needed="an object"), "response_format"),
        logprobs=bool(body.flag("logprobs")),
        top_logprobs=_top_logprobs(body),
        **sampling_fields(body),
        **tool_fields(body, tools),
    )


def schema_of(format: Mapping[str, Any] | None, where: str) -> Mapping[str, Any] | None:
    """The JSON schema that a response format asks for; None for free text.

    Args:
        format: `{"type": "text"}`, `{"type": "json_object"}` or `{"type": "json_schema", ...}`, whose schema stands
            under `json_schema` in chat completions and beside the type in responses.
        where: What it stands under in the request.

    Raises:
        ApiError: It is of another type, or has no schema.
    """
    kind = "text" if format is None else format.get("type")
    if format is None or kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    if kind != "json_schema":
        raise ApiError(
            f"{where}.type is {shortened(kind)}; text, json_object or json_schema is needed", param=f"{where}.type"
        )
    holder = format.get("json_schema", format)
    schema = cast("dict[str, Any]", holder).get("schema") if isinstance(holder, dict) else None
    if not isinstance(schema, dict):
        raise ApiError(f"{where} has the schema {shortened(schema)}; an object is needed", param=where)
    return cast("dict[str, Any]", schema)


def _tool(entry: Any, place: int) -> dict[str, Any]:
    where = f"tools[{place}]"
    if not isinstance(entry, dict) or entry.get("type") != "function" or not isinstance(entry.get("function"), dict):
        raise ApiError(f"{where} is {shortened(entry)}; a tool of type 'function' is needed", param=where)
    return function_schema(cast("dict[str, Any]", entry["function"]), f"{where}.function")


def _top_logprobs(body: Body) -> int:
    count = body.whole("top_logprobs", least=0, most=MOST_TOPS) or 0
    if count and not body.flag("logprobs"):
        raise ApiError(f"top_logprobs is {count}, but logprobs is not true", param="top_logprobs")
    return count


def chat_completion(answered: Answered, asked: Asked, created: int) -> dict[str, Any]:
    """The response to a request for a chat completion."""
    return {
        **_head(answered, "chat.completion", created),
        "choices": [_choice(choice, index, asked) for index, choice in enumerate(answered.choices)],
        "usage": usage_of(answered),
        **({"prompt_token_ids": list(answered.prompt)} if asked.token_ids else {}),
        **({"prompt_logprobs": prompt_logprobs(answered)} if asked.prompt_logprobs is not None else {}),
    }


class ChatEvents:
    """The same as a stream of events.

    Args:
        asked: The request.
        created: When it came, in seconds since the epoch.
        usage: Whether the last event counts the tokens.
    """

    def __init__(self, asked: Asked, created: int, *, usage: bool) -> None:
        self._asked, self._created = asked, created
        self._usage = usage
        self._head: dict[str, Any] = {}

    def told(self, told: Begun | Piece) -> Iterator[str]:
        """The events of a part."""
        if isinstance(told, Begun):
            self._head = _head(told, "chat.completion.chunk", self._created)
            ids = {"prompt_token_ids": list(told.prompt)} if self._asked.token_ids else {}
            for index in range(self._asked.n):
                yield self._event({"index": index, "delta": {"role": "assistant", "content": ""}}, **ids)
                ids = {}
            return
        delta: dict[str, Any] = {"content": told.text} if told.text else {}
        if told.choice is not None and (calls := _calls(told.choice)):
            delta["tool_calls"] = [{"index": place, **call} for place, call in enumerate(calls)]
        if delta or told.tokens:
            shown = {"logprobs": _logprobs(told.shown)} if self._asked.logprobs else {}
            ids = {"token_ids": list(told.tokens)} if self._asked.token_ids else {}
            yield self._event({"index": told.index, "delta": delta, **shown, **ids})
        if told.choice is not None:
            yield self._event({"index": told.index, "delta": {}, "finish_reason": finish_reason(told.choice)})

    def done(self, answered: Answered) -> Iterator[str]:
        """The events at the end."""
        if self._usage:
            yield sse({**self._head, "choices": [], "usage": usage_of(answered)})
        yield "data: [DONE]\n\n"

    def failed(self, error: ApiError) -> Iterator[str]:
        """The event of an error amid the answer."""
        yield sse(error.body)

    def _event(self, choice: dict[str, Any], **more: Any) -> str:
        nothing = {"usage": None} if self._usage else {}
        whole = {"logprobs": None, "finish_reason": None, **choice}
        return sse({**self._head, "choices": [whole], **more, **nothing})


def usage_of(*answers: Answered) -> dict[str, Any]:
    """Tokens, counted as they are: the sampled stop token is one."""
    prompt = sum(len(answer.prompt) for answer in answers)
    completion = sum(len(choice.tokens) for answer in answers for choice in answer.choices)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(answer.cached_tokens for answer in answers)},
    }


def token_logprobs(token: TokenShown) -> dict[str, Any]:
    """A token with its log-prob and those of the likeliest ones."""

    def entry(shown: TokenShown) -> dict[str, Any]:
        return {"token": shown.text, "logprob": shown.logprob, "bytes": list(shown.data)}

    return {**entry(token), "top_logprobs": [entry(likely) for likely in token.top]}


def prompt_logprobs(begun: Begun) -> list[dict[str, Any] | None]:
    """The log-probs at each place of a prompt by token id, None for the first, as vLLM's server writes them.

    A token's rank is told where it is among the likeliest ones that were asked for.
    """

    def place(token: TokenShown) -> dict[str, Any]:
        ranks = {likely.token: rank for rank, likely in enumerate(token.top, start=1)}
        return {
            str(shown.token): {
                "logprob": shown.logprob,
                "rank": ranks.get(shown.token),
                "decoded_token": shown.text,
            }
            for shown in (*token.top, token)
        }

    return [None if token.logprob is None else place(token) for token in begun.prompt_shown]


def finish_reason(choice: Choice) -> str:
    """How an answer ended."""
    if choice.end in (TurnEnd.LENGTH, TurnEnd.CONTEXT_OVERFLOW):
        return "length"
    return "tool_calls" if choice.message.tool_calls else "stop"


def sse(data: Mapping[str, Any]) -> str:
    """An event."""
    return f"data: {orjson.dumps(data).decode()}\n\n"


def _head(begun: Begun, kind: str, created: int) -> dict[str, Any]:
    return {"id": f"chatcmpl-{begun.id}", "object": kind, "created": created, "model": begun.model}


def _choice(choice: Choice, index: int, asked: Asked) -> dict[str, Any]:
    calls = _calls(choice)
    message = {"role": "assistant", "refusal": None, "content": choice.message.content or (None if calls else "")}
    return {
        "index": index,
        "message": {**message, "tool_calls": calls} if calls else message,
        "logprobs": _logprobs(choice.shown) if asked.logprobs else None,
        "finish_reason": finish_reason(choice),
        **({"token_ids": list(choice.tokens)} if asked.token_ids else {}),
    }


def _calls(choice: Choice) -> list[dict[str, Any]]:
    return [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in choice.message.tool_calls
    ]


def _logprobs(shown: tuple[TokenShown, ...]) -> dict[str, Any]:
    return {"content": [token_logprobs(token) for token in shown], "refusal": None}
