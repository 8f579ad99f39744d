"""How a model writes the calls of tools, and how they are read from its text.

>>> HermesFormat().read('<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>', {}).calls[0].arguments
'{"a": 1}'
>>> def double(x: int) -> int:
...     return 2 * x
>>> from tinker_actors.environments.tools.tool import tool
>>> tools = {"double": tool(double)}
>>> PlainFormat("{name}({arguments})").read("double(4)", tools).calls[0]
ToolCall(id='0', name='double', arguments='{"x": "4"}')
>>> PlainFormat("<{arguments}>").write("double", {"x": 4}, tools)
'<4>'
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

from tinker_actors.data import ToolCall, read_sampled_json
from tinker_actors.environments.tools.closings import Closings, split
from tinker_actors.environments.tools.grammars import call_schema, calls_grammar, json_grammar, json_rule, text_rule
from tinker_actors.environments.tools.tool import Tool
from tinker_actors.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a model said.

    Attributes:
        text: Its text without the calls.
        calls: In the order in which they stand there; ids count from "0" and are those of one message. A call that
            can't be read has the name "" and, as its arguments, what stood there.
    """

    text: str
    calls: tuple[ToolCall, ...] = ()


class ToolFormat(Protocol):
    """The form of calls.

    Attributes:
        closing: The text that every call ends with and that stands nowhere else in one, if there is such.
    """

    @property
    def closing(self) -> str | None:
        """See above."""
        ...

    def read(self, text: str, tools: Mapping[str, Tool]) -> Said:
        """The calls in an action's text."""
        ...

    def write(self, name: str, arguments: Mapping[str, Any], tools: Mapping[str, Tool]) -> str:
        """A call as the model would write it, for demonstrations."""
        ...

    def describe(self, tools: Mapping[str, Tool]) -> str | None:
        """What a system message says of the tools, where the chat template doesn't show their schemas.

        None shows the model neither: the environment's own observations say what there is to say.
        """
        ...

    def begins(self, text: str, tools: Mapping[str, Tool]) -> int:
        """Where in an unfinished text the first call begins, or may begin; the text's length if none does."""
        ...

    def grammar(self, tools: Mapping[str, Tool], *, several: bool) -> str:
        """The grammar of an action that is one call of these tools, or several, for `SamplingParams.grammar`."""
        ...

    def check(self, tools: Mapping[str, Tool]) -> None:
        """Refuse tools that the form can't tell apart.

        Raises:
            ConfigError: Says which.
        """
        ...


class HermesFormat:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, as Qwen, SmolLM and Hermes models write calls.

    A last call whose closing tag is missing, as where that tag was the stop string, counts.
    """

    closing = "</tool_call>"
    _OPENING = "<tool_call>"
    _CALL = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|\Z)", re.DOTALL)

    def read(self, text: str, tools: Mapping[str, Tool]) -> Said:
        """The calls between the tags; their order and JSON text stay as they were."""
        del tools
        calls = tuple(_json_call(str(place), found[1]) for place, found in enumerate(self._CALL.finditer(text)))
        return Said(text=self._CALL.sub("", text).strip() if calls else text, calls=calls)

    def write(self, name: str, arguments: Mapping[str, Any], tools: Mapping[str, Tool]) -> str:
        """The call between its tags, on lines of their own."""
        del tools
        body = json.dumps({"name": name, "arguments": dict(arguments)}, ensure_ascii=False)
        return f"<tool_call>\n{body}\n</tool_call>"

    def describe(self, tools: Mapping[str, Tool]) -> str:
        """The schemas and the form."""
        example = '<tool_call>\n{"name": "...", "arguments": {...}}\n</tool_call>'
        return _description(tools, f"To use one, write its name and arguments as JSON between these tags:\n{example}")

    def begins(self, text: str, tools: Mapping[str, Tool]) -> int:
        """At the first tag, or where one may have begun."""
        del tools
        return _opens(text, [self._OPENING])

    def grammar(self, tools: Mapping[str, Tool], *, several: bool) -> str:
        """Calls between their tags, on lines of their own."""
        before, after = text_rule(f"{self._OPENING}\n"), text_rule(f"\n{self.closing}")
        bodies = (json_rule(call_schema(tool.name, tool.parameters, key="arguments")) for tool in tools.values())
        return calls_grammar([f"{before} {body} {after}" for body in bodies], several=several, between="\n")

    def check(self, tools: Mapping[str, Tool]) -> None:
        """Any tools will do."""


class JsonFormat:
    """The whole action is `{"name": ..., "parameters": {...}}`, or a list of those, as Llama 3 models write calls."""

    closing = None
    _TAG = "<|python_tag|>"

    def read(self, text: str, tools: Mapping[str, Tool]) -> Said:
        """The calls, if the action is JSON that names a known tool; else it is text."""
        try:
            value = read_sampled_json(text.strip().removeprefix(self._TAG))
        except ValueError:
            return Said(text=text)
        entries = cast("list[Any]", value if isinstance(value, list) else [value])
        names = [entry.get("name") if isinstance(entry, dict) else None for entry in entries]
        if not names or not all(isinstance(name, str) and name in tools for name in names):
            return Said(text=text)
        calls = (_json_call(str(place), json.dumps(entry)) for place, entry in enumerate(entries))
        return Said(text="", calls=tuple(calls))

    def write(self, name: str, arguments: Mapping[str, Any], tools: Mapping[str, Tool]) -> str:
        """One object."""
        del tools
        return json.dumps({"name": name, "parameters": dict(arguments)}, ensure_ascii=False)

    def describe(self, tools: Mapping[str, Tool]) -> str:
        """The schemas and the form."""
        return _description(tools, 'To use one, write this and nothing else:\n{"name": "...", "parameters": {...}}')

    def begins(self, text: str, tools: Mapping[str, Tool]) -> int:
        """At the start, if the action may be JSON as a whole."""
        del tools
        head = text.lstrip()
        may_be = not head or head[0] in "{[" or self._TAG.startswith(head) or head.startswith(self._TAG)
        return 0 if may_be else len(text)

    def grammar(self, tools: Mapping[str, Tool], *, several: bool) -> str:
        """One object, or a list of them."""
        calls = {"anyOf": [call_schema(tool.name, tool.parameters, key="parameters") for tool in tools.values()]}
        lists = {"type": "array", "items": calls, "minItems": 2}
        return json_grammar({"anyOf": [*calls["anyOf"], lists]} if several else calls)

    def check(self, tools: Mapping[str, Tool]) -> None:
        """Any tools will do."""


class PlainFormat:
    """Calls in plain text, such as `calc(3+4)` or `<3+4>`, for models that have learnt no markup.

    A tool with one parameter gets all of the text between, as it stands; with several, the parts between commas, each
    as a Python literal where it is one (`move(3, 'up')`), else as text. Brackets and quotes in the text are minded, so
    that `calc((1+2)*3)` is one call. What doesn't name a known tool is text.

    Args:
        form: Text with `{arguments}` in it, and with `{name}` where there are several tools.

    Raises:
        ConfigError: `{arguments}` is missing, or nothing marks where a call begins and ends.
    """

    closing = None

    def __init__(self, form: str) -> None:
        before, found, self._close = form.partition("{arguments}")
        if not found:
            raise ConfigError(f"the form of calls is {form!r}; text with {{arguments}} in it is needed")
        self._open, self._named, self._between = before.partition("{name}")
        if not self._close or not (self._open or self._between):
            raise ConfigError(f"the form of calls is {form!r}; something must mark where the arguments begin and end")
        self._form = form

    def read(self, text: str, tools: Mapping[str, Tool]) -> Said:
        """The calls of known tools; an opening without its end is text."""
        if not tools:
            return Said(text=text)
        opening, closings = self._opening(tools), Closings(text, self._close)
        calls: list[ToolCall] = []
        kept: list[str] = []
        place = 0
        while (begun := opening.search(text, place)) is not None:
            end = closings.after(begun.end())
            if end is None:
                break
            name = begun["name"] if self._named else next(iter(tools))
            kept.append(text[place : begun.start()])
            arguments = self._arguments(text[begun.end() : end], tools[name])
            calls.append(ToolCall(id=str(len(calls)), name=name, arguments=json.dumps(arguments)))
            place = end + len(self._close)
        kept.append(text[place:])
        return Said(text="".join(kept).strip() if calls else text, calls=tuple(calls))

    def write(self, name: str, arguments: Mapping[str, Any], tools: Mapping[str, Tool]) -> str:
        """The call in the form; a lone text stands as it is, several values as literals."""
        del tools
        values = list(arguments.values())
        inner = str(values[0]) if len(values) == 1 else ", ".join(repr(value) for value in values)
        return f"{self._open}{name if self._named else ''}{self._between}{inner}{self._close}"

    def describe(self, tools: Mapping[str, Tool]) -> None:
        """Nothing: a model that has learnt no markup would not read it."""

    def begins(self, text: str, tools: Mapping[str, Tool]) -> int:
        """At the first opening of a known tool, or where one may have begun."""
        names = tools if self._named else [""]
        return _opens(text, [f"{self._open}{name}{self._between}" for name in names])

    def grammar(self, tools: Mapping[str, Tool], *, several: bool) -> str:
        """Calls with any text between their marks, on lines of their own."""
        inner = f"/[^{re.escape(self._close[0])}\\n]*/"
        names = [tool.name if self._named else "" for tool in tools.values()]
        openings = [text_rule(f"{self._open}{name}{self._between}") for name in names]
        calls = [f"{opening} {inner} {text_rule(self._close)}" for opening in openings]
        return calls_grammar(calls, several=several, between="\n")

    def check(self, tools: Mapping[str, Tool]) -> None:
        """Refuse several tools where the form doesn't name them."""
        if not self._named and len(tools) != 1:
            raise ConfigError(
                f"the form of calls is {self._form!r}, which names no tool, and there are {len(tools)} "
                f"({', '.join(tools) or 'none'}); {{name}} is needed in it, or exactly one tool"
            )

    def _opening(self, tools: Mapping[str, Tool]) -> re.Pattern[str]:
        names = "|".join(re.escape(name) for name in sorted(tools, key=len, reverse=True))
        if not self._named:
            return re.compile(re.escape(self._open + self._between))
        edge = "" if self._open else r"(?<![\w.])"
        return re.compile(f"{edge}{re.escape(self._open)}(?P<name>{names}){re.escape(self._between)}")

    def _arguments(self, inner: str, tool: Tool) -> dict[str, Any]:
        names = list(tool.parameters.get("properties", {}))
        if len(names) == 1:
            return {names[0]: inner}
        values = [_literal(part) for part in split(inner)]
        surplus = {f"argument {place + 1}": value for place, value in enumerate(values) if place >= len(names)}
        return dict(zip(names, values, strict=False)) | surplus


_FORMATS: Mapping[str, Callable[[], ToolFormat]] = {"hermes": HermesFormat, "json": JsonFormat}


def tool_format(given: str | ToolFormat) -> ToolFormat:
    """A format by name (`hermes`, `json`), by the form of a call in plain text, or as it is.

    Raises:
        ConfigError: It is neither.
    """
    if not isinstance(given, str):
        return given
    if given in _FORMATS:
        return _FORMATS[given]()
    if "{arguments}" in given:
        return PlainFormat(given)
    raise ConfigError(
        f"tool_format is {given!r}; one of {', '.join(_FORMATS)} is needed, or the form of a call such as "
        "'{name}({arguments})'"
    )


def _json_call(id: str, text: str) -> ToolCall:
    """A call from the JSON of its name and arguments; without a name if it can't be read."""
    try:
        value = read_sampled_json(text)
    except ValueError:
        return ToolCall(id=id, name="", arguments=text)
    if not isinstance(value, dict):
        return ToolCall(id=id, name="", arguments=text)
    entry = cast("dict[str, Any]", value)
    name, arguments = entry.get("name"), entry.get("arguments", entry.get("parameters", {}))
    if not isinstance(name, str) or not name:
        return ToolCall(id=id, name="", arguments=text)
    return ToolCall(id=id, name=name, arguments=arguments if isinstance(arguments, str) else json.dumps(arguments))


def _description(tools: Mapping[str, Tool], form: str) -> str:
    listed = "\n".join(json.dumps(tool.schema["function"], ensure_ascii=False) for tool in tools.values())
    return f"These tools are there for you:\n{listed}\n{form}"


def _opens(text: str, openings: Iterable[str]) -> int:
    """Where one of these texts stands first in a text, or may have begun at its end; its length if none has."""
    first = len(text)
    for opening in openings:
        if (found := text.find(opening)) >= 0:
            first = min(first, found)
            continue
        begun = (size for size in range(min(len(opening) - 1, len(text)), 0, -1) if text.endswith(opening[:size]))
        first = min(first, len(text) - next(begun, 0))
    return first


def _literal(text: str) -> Any:
    try:
        value = ast.literal_eval(text)
        json.dumps(value)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
    return value
