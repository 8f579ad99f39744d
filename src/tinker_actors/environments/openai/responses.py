"""The API's responses: from a request's body to what is asked, and from an answer to the response."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from tinker_actors.data import Message, ToolCall
from tinker_actors.environments.openai.asked import Answered, Asked, Begun, Choice
from tinker_actors.environments.openai.body import Body
from tinker_actors.environments.openai.chat import schema_of, token_logprobs
from tinker_actors.environments.openai.errors import ApiError, shortened
from tinker_actors.environments.openai.messages import message_of, with_names
from tinker_actors.environments.openai.tools import function_schema, tool_fields
from tinker_actors.environments.openai.wanted import MOST_TOPS, WITHOUT_EFFECT

_KNOWN = WITHOUT_EFFECT | {
    "background",
    "include",
    "model",
    "input",
    "instructions",
    "max_output_tokens",
    "parallel_tool_calls",
    "previous_response_id",
    "return_token_ids",
    "store",
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
    return Asked(
        model=body.get("model", str, needed="a model's name") or "",
        messages=with_names([*head, *_messages(items)]),
        **tool_fields(body, tools),
        schema=_schema(body),
        schema_field="text.format",
        max_tokens=body.whole("max_output_tokens", least=1),
        temperature=body.number("temperature", 0, 2),
        top_p=body.number("top_p", 0, 1),
        logprobs=_LOGPROBS in included,
        top_logprobs=body.whole("top_logprobs", least=0, most=MOST_TOPS) or 0,
        token_ids=bool(body.flag("return_token_ids")),
        previous=_previous(body),
        store=body.flag("store") is not False,
    )


def _schema(body: Body) -> Mapping[str, Any] | None:
    text = body.get("text", dict, needed="an object") or {}
    if others := [name for name, value in text.items() if name != "format" and value is not None]:
        raise ApiError(f"text has {others}; format alone is served", param=f"text.{others[0]}")
    format = text.get("format")
    if not isinstance(format, dict | None):
        raise ApiError(f"text.format is {shortened(format)}; an object is needed", param="text.format")
    return schema_of(format, "text.format")


def _previous(body: Body) -> str | None:
    value = body.get("previous_response_id", str, needed="a response's id")
    return None if value is None else value.removeprefix("resp_")


def _tool(entry: Any, place: int) -> dict[str, Any]:
    where = f"tools[{place}]"
    if not isinstance(entry, dict) or entry.get("type") != "function":
        raise ApiError(f"{where} is {shortened(entry)}; a tool of type 'function' is needed", param=where)
    return function_schema(cast("dict[str, Any]", entry), where)


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


def response(answered: Answered, asked: Asked, created: int) -> dict[str, Any]:
    """The response."""
    (choice,) = answered.choices
    cut = choice.end.is_truncated
    return {
        **outline(answered, asked, created),
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": items_of(answered.id, choice, asked),
        "usage": _usage(answered, choice),
        **({"prompt_token_ids": list(answered.prompt), "token_ids": list(choice.tokens)} if asked.token_ids else {}),
    }


def outline(begun: Begun, asked: Asked, created: int) -> dict[str, Any]:
    """What is known of a response when it begins."""
    format = {"type": "text"} if asked.schema is None else _format(asked.schema)
    return {
        "id": f"resp_{begun.id}",
        "object": "response",
        "created_at": created,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": begun.model,
        "parallel_tool_calls": asked.parallel,
        "previous_response_id": None if asked.previous is None else f"resp_{asked.previous}",
        "store": asked.store,
        "temperature": asked.temperature,
        "text": {"format": format},
        "tool_choice": _tool_choice(asked),
        "tools": [{"type": "function", "strict": False, **tool["function"]} for tool in asked.tools],
        "top_p": asked.top_p,
        "truncation": "disabled",
    }


def items_of(id: str, choice: Choice, asked: Asked) -> list[dict[str, Any]]:
    """The items of the output: the text, then the calls."""
    status = "incomplete" if choice.end.is_truncated else "completed"
    items: list[dict[str, Any]] = []
    calls = choice.message.tool_calls
    if choice.message.content or not calls:
        logprobs = [token_logprobs(token) for token in choice.shown] if asked.logprobs else []
        items.append(text_item(id, choice.message.content, status, logprobs))
    items += [
        {
            "id": f"fc_{id}_{place}",
            "type": "function_call",
            "call_id": call.id,
            "name": call.name,
            "arguments": call.arguments,
            "status": status,
        }
        for place, call in enumerate(calls)
    ]
    return items


def text_item(id: str, text: str, status: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    """The item of the text."""
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
    return {"id": f"msg_{id}", "type": "message", "role": "assistant", "status": status, "content": [part]}


def _format(schema: Mapping[str, Any]) -> dict[str, Any]:
    if schema == {"type": "object"}:
        return {"type": "json_object"}
    return {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}


def _tool_choice(asked: Asked) -> Any:
    if not asked.must_call:
        return "auto" if asked.tools else "none"
    if len(asked.must_call) == len(asked.tools):
        return "required"
    return {"type": "function", "name": asked.must_call[0]}


def _usage(answered: Answered, choice: Choice) -> dict[str, Any]:
    prompt, completion = len(answered.prompt), len(choice.tokens)
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": answered.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + completion,
    }
