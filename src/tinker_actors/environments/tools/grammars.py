"""Grammars of JSON and of calls, as text in the package llguidance's variant of Lark. Needs the package for nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

# One way to write each document, as `json.dumps` does: a model can't go on with white space for ever.
_WRITTEN = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def json_grammar(schema: Mapping[str, Any]) -> str:
    """The grammar of the JSON documents that fit a schema."""
    return f"start: {json_rule(schema)}"


def json_rule(schema: Mapping[str, Any]) -> str:
    """The documents that fit a schema, within a rule."""
    return f"%json {json.dumps({**schema, 'x-guidance': _WRITTEN})}"


def text_rule(text: str) -> str:
    """A text as it is, within a rule."""
    return json.dumps(text, ensure_ascii=False)


def calls_grammar(calls: Sequence[str], *, several: bool, between: str) -> str:
    """The grammar of one or more of these calls.

    Args:
        calls: A rule's body for each.
        several: Whether more than one may follow.
        between: The text between two.
    """
    rules = "\n".join(f"call_{place}: {call}" for place, call in enumerate(calls))
    names = " | ".join(f"call_{place}" for place in range(len(calls)))
    more = f" ({text_rule(between)} call)*" if several else ""
    return f"start: call{more}\ncall: {names}\n{rules}"


def call_schema(name: str, arguments: Mapping[str, Any], *, key: str) -> dict[str, Any]:
    """The schema of a call as JSON.

    Args:
        name: The tool.
        arguments: Schema of its arguments.
        key: What they stand under.
    """
    return {
        "type": "object",
        "properties": {"name": {"const": name}, key: dict(arguments)},
        "required": ["name", key],
        "additionalProperties": False,
    }
