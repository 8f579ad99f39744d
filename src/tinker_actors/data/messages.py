"""Chat messages, as environments write them and chat templates read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tinker_actors.errors import DataError

Role = Literal["system", "user", "assistant", "tool"]
_ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call that an assistant asked for.

    Attributes:
        id: Names the call within its message; results refer to it.
        name: The tool.
        arguments: The arguments as JSON text, exactly as sampled.
    """

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One chat message.

    Attributes:
        role: Who speaks.
        content: The text.
        tool_calls: Calls that an assistant message asks for.
        tool_call_id: For a tool message, the call that it answers.
        name: The speaker's name, where a template shows it.
    """

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        if self.role not in _ROLES:
            raise DataError(f"message role is {self.role!r}; one of {', '.join(_ROLES)} is needed")


def tool_results(calls: Sequence[ToolCall], results: Mapping[str, str]) -> tuple[Message, ...]:
    """Answer every call once, in call order, keyed by call id.

    Args:
        calls: The calls of one assistant message.
        results: Result text by call id, in any order.

    Raises:
        DataError: A call has no result, a result has no call, or two calls share an id.
    """
    ids = [call.id for call in calls]
    if len(set(ids)) != len(ids):
        raise DataError(f"tool call ids {ids} are not unique within their message")
    if missing := [name for name in ids if name not in results]:
        raise DataError(f"tool calls {missing} have no result; results were given for {sorted(results)}")
    if surplus := sorted(set(results) - set(ids)):
        raise DataError(f"tool results {surplus} answer no call; the calls are {ids}")
    return tuple(Message(role="tool", content=results[call.id], tool_call_id=call.id, name=call.name) for call in calls)
