"""`Tool`: what a model may call, with a JSON schema; made from a Python function by its type hints and docstring.

>>> def add(a: int, b: int = 1) -> int:
...     '''Add two whole numbers.
...
...     Args:
...         a: The first.
...         b: The second.
...     '''
...     return a + b
>>> add_tool = tool(add)
>>> add_tool.description, add_tool.parameters["properties"]["a"]
('Add two whole numbers.', {'description': 'The first.', 'type': 'integer'})
>>> add_tool.parameters["required"]
['a']
"""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import re
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError

from tinker_actors.data.images import Image
from tinker_actors.environments.threads import CallThread
from tinker_actors.errors import ConfigError, EpisodeError

Content: TypeAlias = str | tuple[str | Image, ...]
"""What a result holds: text, or text and images in the order in which they are read."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\Z")


class ToolError(EpisodeError):
    """A tool couldn't do what was asked; the model reads why, and the episode goes on.

    Any other `EpisodeError` that a tool raises fails the episode: what went wrong is no fault of the policy's.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """Something that a model may call.

    Attributes:
        name: What calls name.
        description: What the model is told of it.
        parameters: JSON schema of the arguments, an object.
        call: From the arguments to the result. Anything that it raises becomes a result that says so.
        seconds: How long a call may take; None for the limit of the `Toolbox`, infinity for one that sees to it itself.
        close: Called once when the `Toolbox` is closed.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    call: Callable[[Mapping[str, Any]], Awaitable[Content]]
    seconds: float | None = None
    close: Callable[[], Awaitable[None]] | None = None

    def __post_init__(self) -> None:
        if not _NAME.match(self.name):
            raise ConfigError(f"tool name {self.name!r} can't be called; letters, digits, '_', '.' and '-' are needed")
        if self.seconds is not None and not self.seconds > 0:
            raise ConfigError(f"seconds of tool {self.name!r} is {self.seconds}; a positive number is needed")

    @property
    def schema(self) -> dict[str, Any]:
        """What a chat template is given."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": dict(self.parameters)},
        }


def tool(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    description: str | None = None,
    seconds: float | None = None,
) -> Tool:
    """A tool from a Python function or bound method, plain or `async`.

    The schema comes from the type hints, the descriptions from the docstring (its text before `Args:`, and the entries
    there). Arguments are checked and converted by pydantic before the call. A plain function runs in a thread of its
    own, so that one that never returns holds up nothing else; an `async` one runs on the event loop. What is returned
    becomes text: a string as it is, anything else as JSON; an `Image`, or a sequence of text and images, stays what it
    is.

    Args:
        function: With a type hint for every parameter.
        name: The function's own if not given.
        description: The docstring's if not given.
        seconds: How long a call may take.

    Raises:
        ConfigError: A parameter has no type hint, or none that a JSON schema can be made of.
    """
    called = name or getattr(function, "__name__", type(function).__name__)
    summary, entries = _documented(inspect.getdoc(function) or "")
    arguments = _arguments(called, function, entries)
    return Tool(
        name=called,
        description=summary if description is None else description,
        parameters=_schema(called, arguments),
        call=_Call(called, function, arguments),
        seconds=seconds,
    )


class _Call:
    """Checks the arguments, calls the function, and makes content of what it returns."""

    def __init__(self, name: str, function: Callable[..., Any], arguments: type[BaseModel]) -> None:
        self._name, self._function, self._arguments = name, function, arguments
        self._parameters = inspect.signature(function).parameters.values()
        self._is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - its kind matters, not whether it is there
        )

    async def __call__(self, given: Mapping[str, Any]) -> Content:
        try:
            checked = self._arguments.model_validate(dict(given))
        except ValidationError as error:
            raise ToolError(_refusal(self._name, error)) from None
        positional: list[Any] = []
        named: dict[str, Any] = {}
        for parameter in self._parameters:
            value = getattr(checked, _field(parameter.name))
            if parameter.kind is parameter.POSITIONAL_ONLY:
                positional.append(value)
            else:
                named[parameter.name] = value
        if self._is_async:
            return content_of(await self._function(*positional, **named))
        thread = CallThread(f"tool {self._name}")
        try:
            returned = await thread.call(lambda: self._function(*positional, **named))
        finally:
            thread.end()
        # a plain function may hand out something to await, as a partial of an async one does
        return content_of(await returned if inspect.isawaitable(returned) else returned)


def content_of(returned: Any) -> Content:
    """What a function returned, as a result's content.

    >>> content_of({"x": 1}), content_of(2.5), content_of("as it is")
    ('{"x": 1}', '2.5', 'as it is')

    Raises:
        ToolError: It is neither text, nor an image, nor something that JSON can say.
    """
    if isinstance(returned, str):
        return returned
    if isinstance(returned, Image):
        return (returned,)
    if isinstance(returned, Sequence) and any(isinstance(part, Image) for part in returned):
        return tuple(part if isinstance(part, str | Image) else json.dumps(part) for part in returned)
    if isinstance(returned, BaseModel):
        return returned.model_dump_json()
    try:
        return json.dumps(returned, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise ToolError(f"the tool returned {type(returned).__name__}, which JSON can't say: {error}") from None


def _arguments(name: str, function: Callable[..., Any], entries: Mapping[str, str]) -> type[BaseModel]:
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError):  # annotations of a callable object, or ones only a type checker can resolve
        hints = typing.get_type_hints(getattr(function, "__call__"), include_extras=True)  # noqa: B004, B009
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ConfigError(f"tool {name!r} takes {parameter}, which no schema can list; name its parameters")
        if parameter.name not in hints:
            raise ConfigError(f"parameter {parameter.name!r} of tool {name!r} has no type hint; one is needed")
        default = ... if parameter.default is parameter.empty else parameter.default
        described = Field(default, alias=parameter.name, description=entries.get(parameter.name))
        fields[_field(parameter.name)] = (hints[parameter.name], described)
    try:
        return create_model(name, __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=False), **fields)
    except PydanticUserError as error:
        raise ConfigError(f"tool {name!r}: no schema can be made of its type hints: {error.message}") from error


def _field(name: str) -> str:
    return f"argument_{name}"  # the names of a model's own methods, and those with an underscore, are no fields


def _schema(name: str, arguments: type[BaseModel]) -> dict[str, Any]:
    try:
        schema = arguments.model_json_schema(by_alias=True)
    except PydanticUserError as error:
        raise ConfigError(f"tool {name!r}: no schema can be made of its type hints: {error.message}") from error
    return _untitled(schema)


def _untitled(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Without the titles that pydantic makes of names, which cost a prompt tokens and say nothing."""
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "title" and isinstance(value, str):
            continue
        if key in ("properties", "$defs") and isinstance(value, Mapping):
            found[key] = {name: _untitled(entry) for name, entry in value.items()}
        elif isinstance(value, Mapping) and key not in ("default", "const", "examples"):
            found[key] = _untitled(value)
        elif isinstance(value, list) and key in ("anyOf", "allOf", "oneOf", "prefixItems"):
            found[key] = [_untitled(entry) for entry in value]
        else:
            found[key] = value
    return found


def _refusal(name: str, error: ValidationError) -> str:
    """One line per argument that doesn't fit: which, what was given, what is needed."""
    lines: list[str] = []
    for detail in error.errors(include_url=False):
        where = ".".join(str(part) for part in detail["loc"])
        if detail["type"] == "missing":
            lines.append(f"argument {where!r} is missing")
        elif detail["type"] == "extra_forbidden":
            lines.append(f"there is no argument {where!r}")
        else:
            lines.append(f"argument {where!r} is {_shown(detail['input'])}: {detail['msg']}")
    return f"{name}: {'; '.join(lines)}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


_SECTION = re.compile(r"^(Args|Arguments|Parameters|Returns|Yields|Raises|Examples?|Attributes|Notes?):\s*$", re.M)
_ENTRY = re.compile(r"^(\s+)\*{0,2}(\w+)(?:\s*\([^)]*\))?:\s*(.*)$")


def _documented(doc: str) -> tuple[str, dict[str, str]]:
    """The text before the first section, and the entries of `Args:`."""
    sections = list(_SECTION.finditer(doc))
    summary = doc[: sections[0].start()] if sections else doc
    entries: dict[str, str] = {}
    for place, section in enumerate(sections):
        if section[1] not in ("Args", "Arguments", "Parameters"):
            continue
        end = sections[place + 1].start() if place + 1 < len(sections) else len(doc)
        indent, current = "", ""
        for line in doc[section.end() : end].splitlines():
            entry = _ENTRY.match(line)
            if entry and (not indent or entry[1] == indent):
                indent, current = entry[1], entry[2]
                entries[current] = entry[3].strip()
            elif current and line.strip():
                entries[current] = f"{entries[current]} {line.strip()}".strip()
    return " ".join(summary.split()), entries


async def call_within(tool: Tool, arguments: Mapping[str, Any], seconds: float) -> Content:
    """Call a tool within its own limit, or this one if it has none.

    Raises:
        ToolError: It took too long.
    """
    limit = tool.seconds or seconds
    timeout = asyncio.timeout(None if limit == math.inf else limit)
    try:
        async with timeout:
            return await tool.call(arguments)
    except TimeoutError:
        if timeout.expired():
            raise ToolError(f"{tool.name} took longer than {limit:g} s") from None
        raise
