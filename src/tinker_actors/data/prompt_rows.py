"""Prompts to sample from, as rows of files and data sets hold them.

>>> [message.content for message in read_prompt_row({"prompt": "1+1="}).messages]
['1+1=']
>>> read_prompt_row({"tokens": [5, 6]}).tokens
(5, 6)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tinker_actors.data.chat_rows import read_messages
from tinker_actors.data.messages import Message
from tinker_actors.errors import DataError


@dataclass(frozen=True, slots=True)
class PromptRow:
    """What is to be answered: a conversation or a text, or tokens as they are.

    Attributes:
        messages: A conversation, for the model's chat template; None for the others.
        tokens: Token ids; None for the others.
        text: Text that is encoded as it is; None for the others.
    """

    messages: tuple[Message, ...] | None = None
    tokens: tuple[int, ...] | None = None
    text: str | None = None


def read_prompt_row(row: object, *, folder: Path | None = None) -> PromptRow:
    """What a row asks: one of `messages`, `prompt` (a text, or a list of messages), `text` or `tokens`.

    Messages are as in `read_chat_row`. Other keys of the row are not read.

    Args:
        row: What the file or data set holds.
        folder: What paths of images start from.

    Raises:
        DataError: One line that says what is wrong; it doesn't name the row.
    """
    fields: Mapping[str, Any] = cast("Mapping[str, Any]", row) if isinstance(row, Mapping) else {}
    given = [name for name in ("messages", "prompt", "text", "tokens") if fields.get(name) is not None]
    if len(given) != 1:
        raise DataError(
            f"the row has {' and '.join(given) or 'no prompt'}; one of messages, prompt, text, tokens is needed"
        )
    (name,) = given
    value: object = fields[name]
    if name == "tokens":
        listed = cast("Sequence[object]", value) if isinstance(value, Sequence) and not isinstance(value, str) else ()
        if not listed or not all(type(token) is int and token >= 0 for token in listed):
            raise DataError("tokens is no list of token ids; at least one number of 0 or more is needed")
        return PromptRow(tokens=tuple(cast("Sequence[int]", listed)))
    if name == "text":
        if not isinstance(value, str) or not value:
            raise DataError("text is empty or no text")
        return PromptRow(text=value)
    entries: object = [{"role": "user", "content": value}] if isinstance(value, str) else value
    return PromptRow(messages=read_messages(entries, name, folder=folder))
