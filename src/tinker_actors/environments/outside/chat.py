"""The API's chat completions: from a request's body to what is asked, and from an answer to the response."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from tinker_actors.data import Image, Message, ToolCall, TurnEnd
from tinker_actors.environments.outside.asked import Answered, ApiError, Asked, Body, TokenShown, shortened
from tinker_actors.errors import DataError

WITHOUT_EFFECT = frozenset(
    {
        "metadata",
        "model",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "stream",
        "stream_options",
        "user",
    }
)
"""Fields that change nothing of what the model says. Any model's name will do: a key stands for one policy."""

_KNOWN = WITHOUT_EFFECT | {
    "frequency_penalty",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "max_tokens",
    "messages",
    "modalities",
    "n",
    "parallel_tool_calls",
    "presence_penalty",
    "response_format",
    "return_token_ids",
    "seed",
    "stop",
    "temperature",
    "tool_choice",
    "tools",
    "top_logprobs",
    "top_p",
}
_BIASED = "it changes the distribution, which a trainer couldn't reproduce"


def read_chat(body: Body) -> Asked:
    """What a request for a chat completion asks.

    Raises:
        ApiError: A field can't be read, or can't be served.
    """
    body.refuse_others(_KNOWN)
    body.only("n", 1, reason="one answer is sampled at a time")
    for name in ("presence_penalty", "frequency_penalty"):
        body.only(name, 0, reason=_BIASED)
    body.only("logit_bias", {}, reason=_BIASED)
    body.only("response_format", {"type": "text"}, reason="what is sampled is free text")
    body.only("modalities", ["text"], reason="the model writes text")
    messages = body.get("messages", list, needed="a list of messages")
    if not messages:
        raise ApiError("messages is empty; at least one message is needed", param="messages")
    stop = body.get("stop", str, list, needed="a string or a list of strings")
    tools = [_chat_tool(entry, place) for place, entry in enumerate(body.get("tools", list, needed="a list") or ())]
    return Asked(
        messages=with_names(read_message(entry, place) for place, entry in enumerate(messages)),
        tools=chosen(body, tools),
        max_tokens=body.whole("max_completion_tokens", least=1) or body.whole("max_tokens", least=1),
        temperature=body.number("temperature", 0, 2),
        top_p=body.number("top_p", 0, 1),
        stop=_stops([stop] if isinstance(stop, str) else stop or []),
        seed=body.get("seed", int, needed="an integer"),
        logprobs=bool(body.flag("logprobs")),
        top_logprobs=_top_logprobs(body),
        token_ids=bool(body.flag("return_token_ids")),
    )


def chosen(body: Body, tools: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """The tools that the model is shown."""
    reason = "whether and what the model calls is its own choice"
    body.only("tool_choice", "auto", "none", reason=reason)
    body.only("parallel_tool_calls", True, reason=reason)
    return () if body.get("tool_choice", str, needed="a string") == "none" else tuple(tools)


def chat_tool(name: Any, description: Any, parameters: Any, where: str) -> dict[str, Any]:
    """A tool's schema as chat templates read it."""
    if not isinstance(name, str) or not name:
        raise ApiError(f"{where}.name is {shortened(name)}; a string is needed", param=f"{where}.name")
    function = {"name": name, "description": description or "", "parameters": parameters or {"type": "object"}}
    return {"type": "function", "function": function}


def _chat_tool(entry: Any, place: int) -> dict[str, Any]:
    where = f"tools[{place}]"
    if not isinstance(entry, dict) or entry.get("type") != "function" or not isinstance(entry.get("function"), dict):
        raise ApiError(f"{where} is {shortened(entry)}; a tool of type 'function' is needed", param=where)
    function = cast("dict[str, Any]", entry["function"])
    return chat_tool(function.get("name"), function.get("description"), function.get("parameters"), f"{where}.function")


def read_message(entry: Any, place: int) -> Message:
    """One message of a conversation."""
    where = f"messages[{place}]"
    if not isinstance(entry, dict):
        raise ApiError(f"{where} is {shortened(entry)}; an object is needed", param=where)
    fields = cast("dict[str, Any]", entry)
    role = "system" if fields.get("role") == "developer" else fields.get("role")
    if role not in ("system", "user", "assistant", "tool"):
        raise ApiError(
            f"{where}.role is {shortened(role)}; one of system, developer, user, assistant, tool is needed",
            param=f"{where}.role",
        )
    calls = [read_call(call, f"{where}.tool_calls") for call in fields.get("tool_calls") or ()]
    if role == "tool" and not isinstance(fields.get("tool_call_id"), str):
        raise ApiError(f"{where}.tool_call_id is missing; a tool's message says which call it answers", param=where)
    return message_of(
        role,
        fields.get("content"),
        where,
        tool_calls=tuple(calls),
        tool_call_id=fields.get("tool_call_id"),
        name=fields.get("name") if isinstance(fields.get("name"), str) else None,
    )


def message_of(role: Any, content: Any, where: str, **more: Any) -> Message:
    """A message whose content is text, or a list of text and images.

    Raises:
        ApiError: It is neither.
    """
    if content is None or isinstance(content, str):
        return Message(role=role, content=content or "", **more)
    if not isinstance(content, list):
        raise ApiError(f"{where}.content is {shortened(content)}; text or a list of parts is needed", param=where)
    parts = tuple(_part(part, f"{where}.content") for part in cast("list[Any]", content))
    if all(isinstance(part, str) for part in parts):
        return Message(role=role, content="".join(part for part in parts if isinstance(part, str)), **more)
    return Message(role=role, parts=parts, **more)


def _part(part: Any, where: str) -> str | Image:
    fields = cast("dict[str, Any]", part) if isinstance(part, dict) else {}
    kind = fields.get("type")
    if kind in ("text", "input_text", "output_text") and isinstance(fields.get("text"), str):
        return fields["text"]
    if kind == "refusal" and isinstance(fields.get("refusal"), str):
        return fields["refusal"]
    if kind in ("image_url", "input_image"):
        url = fields.get("image_url")
        return _image(url.get("url") if isinstance(url, dict) else url, where)
    raise ApiError(f"{where} has a part {shortened(part)}; parts of text and images are served", param=where)


def _image(url: Any, where: str) -> Image:
    head, comma, data = url.partition(",") if isinstance(url, str) else ("", "", "")
    if not (head.startswith("data:image/") and head.endswith(";base64") and comma):
        raise ApiError(f"{where} has an image {shortened(url)}; a data: URL in base64 is needed", param=where)
    try:
        return Image.of(base64.b64decode(data, validate=True))
    except (binascii.Error, DataError) as error:
        raise ApiError(f"{where} has an image that can't be read: {error}", param=where) from None


def read_call(entry: Any, where: str) -> ToolCall:
    """A call in an assistant's message."""
    function = entry.get("function") if isinstance(entry, dict) else None
    fields = cast("dict[str, Any]", function) if isinstance(function, dict) else {}
    call = cast("dict[str, Any]", entry).get("id") if fields else None
    name, arguments = fields.get("name"), fields.get("arguments", "{}")
    if not (isinstance(call, str) and isinstance(name, str) and isinstance(arguments, str)):
        raise ApiError(f"{where} has {shortened(entry)}; id, function.name and function.arguments are needed")
    return ToolCall(id=call, name=name, arguments=arguments)


def with_names(messages: Iterator[Message] | Sequence[Message]) -> tuple[Message, ...]:
    """The messages, with the name of the tool in every result, as the project's own tools write it."""
    named: dict[str, str] = {}
    found: list[Message] = []
    for message in messages:
        named.update({call.id: call.name for call in message.tool_calls})
        if message.role == "tool" and message.name is None:
            message = Message(
                role="tool",
                content="" if message.parts else message.content,
                parts=message.parts,
                tool_call_id=message.tool_call_id,
                name=named.get(message.tool_call_id or ""),
            )
        found.append(message)
    return tuple(found)


def chat_completion(answer: Answered, asked: Asked, created: int) -> dict[str, Any]:
    """The response to a request for a chat completion."""
    choice: dict[str, Any] = {
        "index": 0,
        "message": {"role": "assistant", "refusal": None, **_said(answer)},
        "logprobs": _logprobs(answer) if asked.logprobs else None,
        "finish_reason": _finish(answer),
    }
    return {
        "id": f"chatcmpl-{answer.id}",
        "object": "chat.completion",
        "created": created,
        "model": answer.model,
        "choices": [{**choice, "token_ids": list(answer.tokens)} if asked.token_ids else choice],
        "usage": chat_usage(answer),
        **({"prompt_token_ids": list(answer.prompt)} if asked.token_ids else {}),
    }


def chat_chunks(answer: Answered, asked: Asked, created: int, *, usage: bool) -> Iterator[str]:
    """The same as a stream of events."""
    head = {
        "id": f"chatcmpl-{answer.id}",
        "object": "chat.completion.chunk",
        "created": created,
        "model": answer.model,
    }
    said = _said(answer)
    for place, call in enumerate(said.get("tool_calls", ())):
        call["index"] = place
    shown = {"logprobs": _logprobs(answer)} if asked.logprobs else {"logprobs": None}
    ids = {"token_ids": list(answer.tokens)} if asked.token_ids else {}
    first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    tail = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": _finish(answer)}
    prompt = {"prompt_token_ids": list(answer.prompt)} if asked.token_ids else {}
    nothing = {"usage": None} if usage else {}
    yield _event({**head, "choices": [first], **prompt, **nothing})
    yield _event({**head, "choices": [{"index": 0, "delta": said, "finish_reason": None, **shown, **ids}], **nothing})
    yield _event({**head, "choices": [tail], **nothing})
    if usage:
        yield _event({**head, "choices": [], "usage": chat_usage(answer)})
    yield "data: [DONE]\n\n"


def chat_usage(answer: Answered) -> dict[str, int]:
    """Tokens, counted as they are: the sampled stop token is one."""
    prompt, completion = len(answer.prompt), len(answer.tokens)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def token_logprobs(token: TokenShown) -> dict[str, Any]:
    """A token with its log-prob and those of the likeliest ones."""

    def entry(text: str, logprob: float) -> dict[str, Any]:
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

    return {**entry(token.text, token.logprob), "top_logprobs": [entry(text, value) for text, value in token.top]}


def _said(answer: Answered) -> dict[str, Any]:
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in answer.message.tool_calls
    ]
    content = answer.message.content or (None if calls else "")
    return {"content": content, "tool_calls": calls} if calls else {"content": content}


def _finish(answer: Answered) -> str:
    if answer.end in (TurnEnd.LENGTH, TurnEnd.CONTEXT_OVERFLOW):
        return "length"
    return "tool_calls" if answer.message.tool_calls else "stop"


def _logprobs(answer: Answered) -> dict[str, Any]:
    return {"content": [token_logprobs(token) for token in answer.shown], "refusal": None}


def _top_logprobs(body: Body) -> int:
    count = body.whole("top_logprobs", least=0) or 0
    if count and not body.flag("logprobs"):
        raise ApiError(f"top_logprobs is {count}, but logprobs is not true", param="top_logprobs")
    if count > 20:
        raise ApiError(f"top_logprobs is {count}; at most 20 are served", param="top_logprobs")
    return count


def _stops(stops: Sequence[Any]) -> tuple[str, ...]:
    if len(stops) > 16 or not all(isinstance(stop, str) and stop for stop in stops):
        raise ApiError(f"stop is {shortened(stops)}; at most 16 strings that are not empty are needed", param="stop")
    return tuple(stops)


def _event(data: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(data)}\n\n"
