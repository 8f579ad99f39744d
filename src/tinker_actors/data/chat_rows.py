"""Conversations to learn from, as rows of chat files and data sets hold them.

>>> row = read_chat_row({"prompt": "1+1=", "completion": "2"})
>>> [(message.role, message.content) for message in row.messages], row.trained
([('user', '1+1='), ('assistant', '2')], (False, True))
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tinker_actors.data.images import Image
from tinker_actors.data.messages import Message, ToolCall
from tinker_actors.errors import DataError

_ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRow:
    """Messages, and which of them are to be learned.

    Attributes:
        messages: In order; the last one is the last assistant message of the row.
        trained: For each message whether it may be trained on; only assistant messages may.
        tools: Tool schemas that the template shows to the model.
    """

    messages: tuple[Message, ...]
    trained: tuple[bool, ...]
    tools: tuple[Mapping[str, Any], ...] = ()


def read_chat_row(row: object, *, folder: Path | None = None) -> ChatRow:
    """The conversation that a row holds: `messages`, or `prompt` and `completion`, each a text or a list of messages.

    A message is `{"role", "content"}`; `content` is a text, or a list of `{"type": "text", "text"}` and
    `{"type": "image", "image"}` parts, where the image is a path, a data URL, encoded bytes or a picture. It may have
    `tool_calls`, `tool_call_id` and `name`, and an assistant's may have `weight` 0, which keeps it out of training, as
    the prompt's are. What follows the last assistant message answers nothing and is left out. Other keys of the row
    than these and `tools` are not read.

    Args:
        row: What the file or data set holds.
        folder: What paths of images start from.

    Raises:
        DataError: One line that says what is wrong; it doesn't name the row.
    """
    fields = _mapping(row)
    if fields is None:
        raise DataError(f"a row is {_shown(row)}; an object with messages, or prompt and completion, is needed")
    if fields.get("messages") is not None:
        pairs = _messages(fields["messages"], "messages", folder, trainable=True)
    elif fields.get("prompt") is not None and fields.get("completion") is not None:
        pairs = [
            *_messages(_as_list(fields["prompt"], "user"), "prompt", folder, trainable=False),
            *_messages(_as_list(fields["completion"], "assistant"), "completion", folder, trainable=True),
        ]
    else:
        keys = ", ".join(sorted(map(str, fields))) or "none"
        raise DataError(f"neither messages nor prompt and completion are given; the row's keys are: {keys}")
    speaking = [place for place, (message, _) in enumerate(pairs) if message.role == "assistant"]
    if not speaking:
        roles = ", ".join(message.role for message, _ in pairs) or "none"
        raise DataError(f"there is no assistant message to learn; the roles are: {roles}")
    kept = pairs[: speaking[-1] + 1]
    if not any(trained for _, trained in kept):
        raise DataError("no assistant message is left to learn: all of them have weight 0 or belong to the prompt")
    return ChatRow(
        messages=tuple(message for message, _ in kept),
        trained=tuple(trained for _, trained in kept),
        tools=_tools(fields.get("tools")),
    )


def read_messages(value: object, field: str, *, folder: Path | None = None) -> tuple[Message, ...]:
    """A list of messages as a row holds it; errors as of `read_chat_row`, with the field's name."""
    return tuple(message for message, _ in _messages(value, field, folder, trainable=False))


def _as_list(value: object, role: str) -> object:
    return [{"role": role, "content": value}] if isinstance(value, str) else value


def _messages(value: object, field: str, folder: Path | None, *, trainable: bool) -> list[tuple[Message, bool]]:
    entries = _list(value)
    if not entries:
        raise DataError(f"{field} is {_shown(value)}; a list of at least one message is needed")
    return [_message(entry, f"{field}[{place}]", folder, trainable) for place, entry in enumerate(entries)]


def _message(entry: object, where: str, folder: Path | None, trainable: bool) -> tuple[Message, bool]:
    fields = _mapping(entry)
    if fields is None:
        raise DataError(f"{where} is {_shown(entry)}; an object with role and content is needed")
    role = fields.get("role")
    if role is None:
        raise DataError(f"{where} has no role; one of {', '.join(_ROLES)} is needed")
    if role not in _ROLES:
        raise DataError(f"{where}.role is {_shown(role)}; one of {', '.join(_ROLES)} is needed")
    calls = _tool_calls(fields.get("tool_calls"), where)
    parts = _content(fields.get("content"), f"{where}.content", folder)
    if not any(parts) and not calls and role != "tool":
        raise DataError(f"{where}.content is empty; the {role}'s text is needed")
    weight = fields.get("weight")
    if weight not in (None, 0, 1):
        raise DataError(f"{where}.weight is {_shown(weight)}; 0 or 1 is needed")
    message = Message(
        role=role,
        parts=parts,
        tool_calls=calls,
        tool_call_id=_text_or_none(fields.get("tool_call_id"), f"{where}.tool_call_id"),
        name=_text_or_none(fields.get("name"), f"{where}.name"),
    )
    return message, trainable and role == "assistant" and weight != 0


def _content(value: object, where: str, folder: Path | None) -> tuple[str | Image, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    entries = _list(value)
    if entries is None:
        raise DataError(f"{where} is {_shown(value)}; a text or a list of parts is needed")
    return tuple(_part(entry, f"{where}[{place}]", folder) for place, entry in enumerate(entries))


def _part(entry: object, where: str, folder: Path | None) -> str | Image:
    fields = _mapping(entry) or {}
    kind = fields.get("type")
    if kind == "text" and isinstance(fields.get("text"), str):
        return fields["text"]
    if kind == "image":
        return _image(fields.get("image"), f"{where}.image", folder)
    if kind == "image_url":
        url = fields.get("image_url")
        return _image((_mapping(url) or {"url": url}).get("url"), f"{where}.image_url", folder)
    raise DataError(f"{where} is {_shown(entry)}; a text part or an image part is needed")


def _image(source: Any, where: str, folder: Path | None) -> Image:
    if fields := _mapping(source):  # as data sets store them
        source = fields.get("bytes") or fields.get("path")
    try:
        if isinstance(source, str) and source.startswith("data:"):
            source = base64.b64decode(source.partition(",")[2], validate=True)
        elif isinstance(source, str) and "://" in source:
            raise DataError(f"{source[:80]!r} lies elsewhere; a path, a data URL or bytes is needed")
        elif isinstance(source, str):
            source = ((folder or Path()) / source).read_bytes()
        return Image.of(source)
    except OSError as error:
        raise DataError(f"{where}: {error.filename} can't be read: {error.strerror}") from None
    except binascii.Error as error:
        raise DataError(f"{where}: the data URL is not base64: {error}") from None
    except DataError as error:
        raise DataError(f"{where}: {error}") from None


def _tool_calls(value: object, where: str) -> tuple[ToolCall, ...]:
    if value is None:
        return ()
    entries = _list(value)
    if entries is None:
        raise DataError(f"{where}.tool_calls is {_shown(value)}; a list is needed")
    calls: list[ToolCall] = []
    for place, entry in enumerate(entries):
        fields = _mapping(entry) or {}
        function = _mapping(fields.get("function", fields)) or {}
        name = function.get("name")
        if not isinstance(name, str):
            raise DataError(f"{where}.tool_calls[{place}] is {_shown(entry)}; a function with a name is needed")
        given = function.get("arguments", {})
        arguments = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        calls.append(ToolCall(id=str(fields.get("id") or f"call-{place}"), name=name, arguments=arguments))
    return tuple(calls)


def _tools(value: object) -> tuple[Mapping[str, Any], ...]:
    if value is None:
        return ()
    entries = _list(value)
    schemas = None if entries is None else [_mapping(entry) for entry in entries]
    if schemas is None or None in schemas:
        raise DataError(f"tools is {_shown(value)}; a list of tool schemas is needed")
    return tuple(schema for schema in schemas if schema is not None)


def _text_or_none(value: object, where: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise DataError(f"{where} is {_shown(value)}; a text is needed")


def _mapping(value: object) -> Mapping[str, Any] | None:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else None


def _list(value: object) -> Sequence[Any] | None:
    listed = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    return cast("Sequence[Any]", value) if listed else None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
