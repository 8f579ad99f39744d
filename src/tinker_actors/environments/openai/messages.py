"""Messages as the API writes them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence
from typing import Any, cast

from tinker_actors.data import Image, Message, ToolCall
from tinker_actors.environments.openai.errors import ApiError, shortened
from tinker_actors.errors import DataError


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


def gone_on(before: Sequence[Message], said: Message, new: Sequence[Message]) -> tuple[Message, ...]:
    """A conversation that goes on from an answer.

    Args:
        before: What was asked then.
        said: The answer.
        new: What is said now; begins with a system message where instructions are given, which take the place of the
            earlier ones.
    """
    if new[0].role == "system":
        rest = before[1:] if before and before[0].role == "system" else before
        return (new[0], *rest, said, *new[1:])
    return (*before, said, *new)
