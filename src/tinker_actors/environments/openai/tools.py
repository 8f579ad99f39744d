"""Tools in requests: their schemas, which of them the model is to call, and what its text must then be."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from tinker_actors.data import Message, ToolCall
from tinker_actors.environments.openai.asked import Asked
from tinker_actors.environments.openai.body import Body
from tinker_actors.environments.openai.errors import ApiError, shortened, unsupported
from tinker_actors.environments.tools.formats import ToolFormat
from tinker_actors.environments.tools.grammars import json_grammar
from tinker_actors.environments.tools.tool import Tool
from tinker_actors.errors import ModelError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}", re.ASCII)
MOST_TOOLS = 128


def function_schema(fields: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A tool's schema as chat templates read it.

    Args:
        fields: `name`, `description` and `parameters`.
        where: What they stand under in the request.

    Raises:
        ApiError: One can't be read.
    """
    name, description, parameters = fields.get("name"), fields.get("description"), fields.get("parameters")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ApiError(
            f"{where}.name is {shortened(name)}; a name of letters, digits, '_', '.' and '-' is needed",
            param=f"{where}.name",
        )
    if not isinstance(description, str | None):
        raise ApiError(f"{where}.description is {shortened(description)}; text is needed", param=f"{where}.description")
    if not isinstance(parameters, dict | None):
        raise ApiError(
            f"{where}.parameters is {shortened(parameters)}; a JSON schema is needed", param=f"{where}.parameters"
        )
    function = {"name": name, "description": description or "", "parameters": parameters or {"type": "object"}}
    return {"type": "function", "function": function}


def tool_fields(body: Body, schemas: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The fields of `Asked` that say which tools the model is shown and what it may do with them.

    Raises:
        ApiError: `tool_choice` can't be read, or names a tool that isn't there; or there are too many tools.
    """
    names = [schema["function"]["name"] for schema in schemas]
    if len(names) > MOST_TOOLS or len(set(names)) != len(names):
        raise ApiError(
            f"tools has {len(names)} tools; at most {MOST_TOOLS} of different names are served", param="tools"
        )
    chosen = body.get("tool_choice", str, dict, needed="none, auto, required or a function's name")
    parallel = body.flag("parallel_tool_calls") is not False
    if chosen in (None, "auto"):
        return {"tools": tuple(schemas), "parallel": parallel}
    if chosen == "none":
        return {}
    if chosen == "required" and names:
        return {"tools": tuple(schemas), "must_call": tuple(names), "parallel": parallel}
    name = _named(chosen)
    if name not in names:
        raise ApiError(
            f"tool_choice is {shortened(chosen)}; none, auto, or required or one of the functions {names} is needed",
            param="tool_choice",
        )
    return {"tools": tuple(schemas), "must_call": (name,), "parallel": False}


def _named(chosen: Any) -> str | None:
    """The function that a tool choice names: chat completions nest it, responses don't."""
    if not isinstance(chosen, dict) or chosen.get("type") != "function":
        return None
    fields = cast("dict[str, Any]", chosen)
    inner = fields.get("function", fields)
    return inner.get("name") if isinstance(inner, dict) else None


class CallReader:
    """Reads the calls of tools from what a model says.

    Args:
        format: How it writes them.
        asked: Which tools there are, and what is to be done with them.

    Raises:
        ApiError: The format can't do what is asked.
    """

    def __init__(self, format: ToolFormat, asked: Asked) -> None:
        self.tools = tools_of(asked.tools)
        self._format, self._asked = format, asked
        if self.tools and not asked.parallel and not asked.must_call and format.closing is None:
            raise unsupported(
                "parallel_tool_calls",
                False,
                "the form of this model's calls doesn't say where one ends",
            )

    @property
    def stops(self) -> tuple[str, ...]:
        """What ends an answer because no further call may follow."""
        asked = self._asked
        one = bool(self.tools) and not asked.parallel and not asked.must_call
        return (self._format.closing,) if one and self._format.closing is not None else ()

    @property
    def grammar(self) -> str | None:
        """The grammar that the text must follow, if it must."""
        asked = self._asked
        if asked.must_call:
            tools = {name: tool for name, tool in self.tools.items() if name in asked.must_call}
            return self._format.grammar(tools, several=asked.parallel)
        return None if asked.schema is None else json_grammar(asked.schema)

    def begins(self, text: str) -> int:
        """Where in a text that may go on the first call may begin; its length if none has begun."""
        return self._format.begins(text, self.tools) if self.tools else len(text)

    def message(self, text: str, id: str) -> Message:
        """The assistant's message; a text with a call that can't be read stays text.

        Args:
            text: All that the model said.
            id: Of the answer; the calls' ids are made of it.
        """
        if not self.tools:
            return Message(role="assistant", content=text)
        said = self._format.read(text, self.tools)
        if not said.calls or not all(call.name for call in said.calls):
            return Message(role="assistant", content=text.strip())
        calls = tuple(
            ToolCall(id=f"call_{id}_{place}", name=call.name, arguments=call.arguments)
            for place, call in enumerate(said.calls)
        )
        return Message(role="assistant", content=said.text.strip(), tool_calls=calls)


def tools_of(schemas: Sequence[Mapping[str, Any]]) -> dict[str, Tool]:
    """The tools as formats know them; the client, not this process, makes the calls."""

    async def elsewhere(arguments: Mapping[str, object]) -> str:
        raise ModelError("clients make the calls of their tools themselves")

    functions = [schema["function"] for schema in schemas]
    return {
        function["name"]: Tool(
            name=function["name"],
            description=function["description"],
            parameters=function["parameters"],
            call=elsewhere,
        )
        for function in functions
    }
