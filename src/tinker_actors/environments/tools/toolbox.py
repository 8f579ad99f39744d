"""`Toolbox`: the tools of one episode. Calls in a text are made at the same time; each is answered once, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from tinker_actors.actors.cancelled import is_cancelled
from tinker_actors.data import Message, ToolCall, ToolList, read_sampled_json, tool_results
from tinker_actors.environments.tools.formats import ToolFormat, tool_format
from tinker_actors.environments.tools.tool import Content, Tool, ToolError, call_within, tool
from tinker_actors.errors import ConfigError, EpisodeError


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """What a text made of the tools.

    Attributes:
        text: The text without the calls.
        calls: The calls, in its order.
        results: One message per call, in that order, with the call's id; empty if there was none.
        errors: How many of the results say that something went wrong.
    """

    text: str
    calls: tuple[ToolCall, ...]
    results: tuple[Message, ...]
    errors: int


class Toolbox:
    """Tools, the form in which they are called, and the limits on calls.

    Args:
        tools: `Tool`s and plain functions.
        format: `hermes`, `json`, the form of a call in plain text, or a `ToolFormat`.
        seconds: How long a call may take whose tool has no limit of its own.
        max_calls: The most calls of one action; those beyond it are answered by an error.
        max_characters: The longest text of a result; what is beyond it is cut, with a note.

    Attributes:
        tools: By name.
        format: The form of calls.
        made: How many calls were made so far.

    Raises:
        ConfigError: Two tools share a name, a limit can't be used, or the form can't tell the tools apart.
    """

    def __init__(
        self,
        tools: Iterable[Tool | Callable[..., Any]],
        *,
        format: str | ToolFormat = "hermes",
        seconds: float = 30.0,
        max_calls: int = 16,
        max_characters: int = 20_000,
    ) -> None:
        if not seconds > 0 or max_calls < 1 or max_characters < 1:
            raise ConfigError(
                f"seconds is {seconds}, max_calls {max_calls}, max_characters {max_characters}; positive numbers are "
                "needed"
            )
        self.format = tool_format(format)
        self._seconds, self._max_calls, self._max_characters = seconds, max_calls, max_characters
        self.tools: dict[str, Tool] = {}
        for given in tools:
            made = given if isinstance(given, Tool) else tool(given)
            if made.name in self.tools:
                raise ConfigError(f"there are two tools {made.name!r}; every tool needs a name of its own")
            self.tools[made.name] = made
        self.format.check(self.tools)
        self._closes = [each.close for each in self.tools.values() if each.close is not None]
        self.made = 0

    @property
    def listed(self) -> ToolList | None:
        """What the model is told of the tools; None where there are none, or their form is plain text."""
        described = self.format.describe(self.tools) if self.tools else None
        if described is None:
            return None
        return ToolList(schemas=tuple(each.schema for each in self.tools.values()), described=described)

    def written(self, name: str, **arguments: Any) -> str:
        """A call as a model would write it, for demonstrations.

        Raises:
            ConfigError: There is no such tool.
        """
        if name not in self.tools:
            raise ConfigError(f"there is no tool {name!r}; those there are: {', '.join(self.tools) or 'none'}")
        return self.format.write(name, arguments, self.tools)

    async def close(self) -> None:
        """Release what the tools hold; each is closed once."""
        closes, self._closes = self._closes, []
        await asyncio.gather(*(close() for close in closes))

    async def use(self, text: str) -> Used:
        """Make the calls of an action, all at the same time, and answer each of them.

        Raises:
            EpisodeError: A tool raised one: what went wrong is no fault of the policy's, and the episode fails.
        """
        said = self.format.read(text, self.tools)
        if not said.calls:
            return Used(text=said.text, calls=(), results=(), errors=0)
        # ids stay unique in a conversation, not in one message only: some templates show them
        calls = tuple(
            ToolCall(id=f"call-{self.made + place}", name=call.name, arguments=call.arguments)
            for place, call in enumerate(said.calls)
        )
        self.made += len(calls)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._answer(call, place)) for place, call in enumerate(calls)]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        answers = [task.result() for task in tasks]
        contents = {call.id: content for call, (content, _) in zip(calls, answers, strict=True)}
        return Used(
            text=said.text,
            calls=calls,
            results=tool_results(calls, contents),
            errors=sum(failed for _, failed in answers),
        )

    async def _answer(self, call: ToolCall, place: int) -> tuple[Content, bool]:
        """The result of one call, and whether it is an error."""
        # The boundary to the tools: whatever one raises is its result, and the episode goes on.
        try:
            if place >= self._max_calls:
                raise ToolError(f"one action may make {self._max_calls} calls; this one was not made")
            return self._cut(await call_within(self._tool(call), _read_arguments(call), self._seconds)), False
        except ToolError as error:
            return self._cut(f"error: {error}"), True
        except EpisodeError:
            raise
        except (Exception, SystemExit, asyncio.CancelledError) as error:  # user code: the model reads what went wrong
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            return self._cut(f"error: {type(error).__name__}: {error}"), True

    def _tool(self, call: ToolCall) -> Tool:
        if not call.name:
            raise ToolError(f"the call can't be read: {call.arguments[:200]!r}; JSON with name and arguments is needed")
        found = self.tools.get(call.name)
        if found is None:
            raise ToolError(f"there is no tool {call.name!r}; those there are: {', '.join(self.tools)}")
        return found

    def _cut(self, content: Content) -> Content:
        if not isinstance(content, str) or len(content) <= self._max_characters:
            return content
        return f"{content[: self._max_characters]}\n[{len(content) - self._max_characters} more characters]"


def _read_arguments(call: ToolCall) -> Mapping[str, Any]:
    try:
        value = read_sampled_json(call.arguments or "{}")
    except ValueError as error:
        raise ToolError(f"the arguments of {call.name} are not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ToolError(f"the arguments of {call.name} are {call.arguments[:200]}; a JSON object is needed")
    return cast("Mapping[str, Any]", value)
