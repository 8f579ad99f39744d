"""The API's responses: from a request's body to what is asked, and from an answer to the response and its events."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

from tinker_actors.data import Message, ToolCall
from tinker_actors.environments.outside.asked import Answered, ApiError, Asked, Body, shortened
from tinker_actors.environments.outside.chat import (
    WITHOUT_EFFECT,
    chat_tool,
    chosen,
    message_of,
    token_logprobs,
    with_names,
)

_KNOWN = WITHOUT_EFFECT | {
    "background",
    "include",
    "input",
    "instructions",
    "max_output_tokens",
    "parallel_tool_calls",
    "previous_response_id",
    "return_token_ids",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
    "top_p",
    "truncation",
}
_LOGPROBS = "message.output_text.logprobs"
_NOTHING_HERE = "reasoning.encrypted_content"  # asked for by default in some frameworks; there is none to include


def read_response_request(body: Body) -> Asked:
    """What a request for a response asks.

    Raises:
        ApiError: A field can't be read, or can't be served.
    """
    body.refuse_others(_KNOWN)
    body.only("background", False, reason="answers are given at once")
    body.only("truncation", "disabled", reason="history is never cut here")
    text = body.get("text", dict, needed="an object") or {}
    if {name: value for name, value in text.items() if value is not None} not in ({}, {"format": {"type": "text"}}):
        raise ApiError(f"text is {shortened(text)}; what is sampled is free text", param="text")
    included = body.get("include", list, needed="a list") or []
    if strange := [entry for entry in included if entry not in (_LOGPROBS, _NOTHING_HERE)]:
        raise ApiError(f"include has {strange}; {_LOGPROBS!r} is served", param="include")
    given = body.get("input", str, list, needed="text or a list of items")
    if not given:
        raise ApiError("input is missing; text or a list of items is needed", param="input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else cast("list[Any]", given)
    instructions = body.get("instructions", str, needed="text")
    head = [Message(role="system", content=instructions)] if instructions else []
    tools = [_tool(entry, place) for place, entry in enumerate(body.get("tools", list, needed="a list") or ())]
    top = body.whole("top_logprobs", least=0) or 0
    if top > 20:
        raise ApiError(f"top_logprobs is {top}; at most 20 are served", param="top_logprobs")
    return Asked(
        messages=with_names([*head, *_messages(items)]),
        tools=chosen(body, tools),
        max_tokens=body.whole("max_output_tokens", least=1),
        temperature=body.number("temperature", 0, 2),
        top_p=body.number("top_p", 0, 1),
        logprobs=_LOGPROBS in included,
        top_logprobs=top,
        token_ids=bool(body.flag("return_token_ids")),
        previous=_previous(body),
    )


def _previous(body: Body) -> str | None:
    value = body.get("previous_response_id", str, needed="a response's id")
    return None if value is None else value.removeprefix("resp_")


def _tool(entry: Any, place: int) -> dict[str, Any]:
    where = f"tools[{place}]"
    if not isinstance(entry, dict) or entry.get("type") != "function":
        raise ApiError(f"{where} is {shortened(entry)}; a tool of type 'function' is needed", param=where)
    return chat_tool(entry.get("name"), entry.get("description"), entry.get("parameters"), where)


def _messages(items: list[Any]) -> list[Message]:
    """The items as messages: calls belong to the assistant's message before them."""
    found: list[Message] = []
    for place, item in enumerate(items):
        where = f"input[{place}]"
        if not isinstance(item, dict):
            raise ApiError(f"{where} is {shortened(item)}; an object is needed", param=where)
        fields = cast("dict[str, Any]", item)
        kind = fields.get("type", "message")
        if kind == "message":
            role = "system" if fields.get("role") == "developer" else fields.get("role")
            if role not in ("system", "user", "assistant"):
                raise ApiError(f"{where}.role is {shortened(role)}; system, user or assistant is needed", param=where)
            found.append(message_of(role, fields.get("content"), where))
        elif kind == "function_call":
            call = _call(fields, where)
            if found and found[-1].role == "assistant":
                said, calls = found[-1].content, found.pop().tool_calls
            else:
                said, calls = "", ()
            found.append(Message(role="assistant", content=said, tool_calls=(*calls, call)))
        elif kind == "function_call_output":
            output = fields.get("output")
            if not isinstance(fields.get("call_id"), str):
                raise ApiError(f"{where}.call_id is missing; an output says which call it answers", param=where)
            found.append(message_of("tool", output, where, tool_call_id=fields["call_id"]))
        else:
            raise ApiError(
                f"{where}.type is {shortened(kind)}; message, function_call or function_call_output is needed",
                param=where,
            )
    return found


def _call(fields: Mapping[str, Any], where: str) -> ToolCall:
    call, name, arguments = fields.get("call_id"), fields.get("name"), fields.get("arguments", "{}")
    if not (isinstance(call, str) and isinstance(name, str) and isinstance(arguments, str)):
        raise ApiError(f"{where} is {shortened(fields)}; call_id, name and arguments are needed", param=where)
    return ToolCall(id=call, name=name, arguments=arguments)


def response(answer: Answered, asked: Asked, created: int) -> dict[str, Any]:
    """The response."""
    cut = answer.end.is_truncated
    return {
        **_outline(answer, asked, created),
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": _items(answer, asked),
        "usage": _usage(answer),
        **({"prompt_token_ids": list(answer.prompt), "token_ids": list(answer.tokens)} if asked.token_ids else {}),
    }


def response_events(answer: Answered, asked: Asked, created: int) -> Iterator[str]:
    """The same as a stream of events."""
    number = 0

    def event(kind: str, **fields: Any) -> str:
        nonlocal number
        data = json.dumps({"type": kind, "sequence_number": number, **fields})
        number += 1
        return f"event: {kind}\ndata: {data}\n\n"

    begun = {**_outline(answer, asked, created), "status": "in_progress", "output": [], "usage": None}
    yield event("response.created", response=begun)
    yield event("response.in_progress", response=begun)
    whole = response(answer, asked, created)
    for place, item in enumerate(whole["output"]):
        where = {"output_index": place, "item_id": item["id"]}
        empty = {"content": []} if item["type"] == "message" else {"arguments": ""}
        yield event("response.output_item.added", output_index=place, item={**item, **empty, "status": "in_progress"})
        if item["type"] == "message":
            (part,) = item["content"]
            inside = {**where, "content_index": 0}
            yield event("response.content_part.added", part={**part, "text": "", "logprobs": []}, **inside)
            yield event("response.output_text.delta", delta=part["text"], logprobs=part["logprobs"], **inside)
            yield event("response.output_text.done", text=part["text"], logprobs=part["logprobs"], **inside)
            yield event("response.content_part.done", part=part, **inside)
        else:
            yield event("response.function_call_arguments.delta", delta=item["arguments"], **where)
            yield event(
                "response.function_call_arguments.done", arguments=item["arguments"], name=item["name"], **where
            )
        yield event("response.output_item.done", output_index=place, item=item)
    yield event("response.incomplete" if answer.end.is_truncated else "response.completed", response=whole)


def _outline(answer: Answered, asked: Asked, created: int) -> dict[str, Any]:
    return {
        "id": f"resp_{answer.id}",
        "object": "response",
        "created_at": created,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": answer.model,
        "parallel_tool_calls": True,
        "previous_response_id": None if asked.previous is None else f"resp_{asked.previous}",
        "temperature": asked.temperature,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [{"type": "function", "strict": False, **tool["function"]} for tool in asked.tools],
        "top_p": asked.top_p,
        "truncation": "disabled",
    }


def _items(answer: Answered, asked: Asked) -> list[dict[str, Any]]:
    status = "incomplete" if answer.end.is_truncated else "completed"
    items: list[dict[str, Any]] = []
    calls = answer.message.tool_calls
    if answer.message.content or not calls:
        logprobs = [token_logprobs(token) for token in answer.shown] if asked.logprobs else []
        text = {"type": "output_text", "text": answer.message.content, "annotations": [], "logprobs": logprobs}
        items.append(
            {"id": f"msg_{answer.id}", "type": "message", "role": "assistant", "status": status, "content": [text]}
        )
    items += [
        {
            "id": f"fc_{answer.id}_{place}",
            "type": "function_call",
            "call_id": call.id,
            "name": call.name,
            "arguments": call.arguments,
            "status": status,
        }
        for place, call in enumerate(calls)
    ]
    return items


def _usage(answer: Answered) -> dict[str, Any]:
    prompt, completion = len(answer.prompt), len(answer.tokens)
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + completion,
    }
