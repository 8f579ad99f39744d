"""JSON that a model wrote."""

from __future__ import annotations

import json
import re
from typing import Any, cast

_DEEPEST = 100  # nested values; what is read here is written and read again further down the stack
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def read_sampled_json(text: str) -> Any:
    """The value of a text that was sampled, or that somebody outside sent on.

    A model that repeats itself writes brackets within brackets by the thousand. Python's reader gives up on those with
    `RecursionError`, which is no `ValueError`, and a template that writes them again may give up on fewer. Half of
    a surrogate pair, which it does read, is no text that a tokenizer takes.

    >>> read_sampled_json('{"a": [1]}')
    {'a': [1]}

    Raises:
        ValueError: It is no JSON, or nested more than 100 deep, or a string in it is no text.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(_too_deep()) from None
    level: list[Any] = [value]
    for _ in range(_DEEPEST):
        level = [inner for each in level for inner in _within(each)]
        if not level:
            break
    else:
        raise ValueError(_too_deep())
    if _SURROGATE.search(text):
        json.dumps(value, ensure_ascii=False).encode()  # its error is a `ValueError`
    return value


def _within(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(cast("dict[str, Any]", value).values())
    return cast("list[Any]", value) if isinstance(value, list) else []


def _too_deep() -> str:
    return f"nested more than {_DEEPEST} deep"
