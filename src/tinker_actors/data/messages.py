"""Chat messages, as environments write them and chat templates read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tinker_actors.data.images import Image
from tinker_actors.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image as PilImage

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
    """One chat message: text, or text with images in it.

    >>> import numpy as np
    >>> message = Message.of(np.zeros((8, 8), np.uint8), "Which digit?")
    >>> message.role, message.content, message.parts
    ('user', 'Which digit?', (Image(png, 8x8), 'Which digit?'))

    Attributes:
        role: Who speaks.
        content: The text; where images stand in it, all of the text around them.
        tool_calls: Calls that an assistant message asks for.
        tool_call_id: For a tool message, the call that it answers.
        name: The speaker's name, where a template shows it.
        parts: Where there are images: text and images in the order in which they are read; else empty.
    """

    role: Role
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    parts: tuple[str | Image, ...] = ()

    def __post_init__(self) -> None:
        if self.role not in _ROLES:
            raise DataError(f"message role is {self.role!r}; one of {', '.join(_ROLES)} is needed")
        if self.parts:
            self._check_parts()

    def _check_parts(self) -> None:
        text = "".join(part for part in self.parts if isinstance(part, str))
        if self.content not in ("", text):
            raise DataError(f"message content is {self.content!r}, but its parts say {text!r}; give one of them")
        object.__setattr__(self, "content", text)
        if not self.images:
            object.__setattr__(self, "parts", ())

    @classmethod
    def of(cls, *parts: str | Image | bytes | PilImage | NDArray[Any], role: Role = "user") -> Message:
        """A message of text and images.

        Args:
            parts: Text, and images as `Image.of` takes them.
            role: Who speaks.

        Raises:
            DataError: A part is neither text nor an image.
        """
        return cls(role=role, parts=tuple(part if isinstance(part, str) else Image.of(part) for part in parts))

    @property
    def images(self) -> tuple[Image, ...]:
        """The images, in order."""
        return tuple(part for part in self.parts if isinstance(part, Image))

    @property
    def shown(self) -> str:
        """The content for people, with a note where each image stands."""
        if not self.parts:
            return self.content
        return "".join(part if isinstance(part, str) else f"[image {part.width}x{part.height}]" for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolList:
    """What a model is told of the tools that it may call.

    Attributes:
        schemas: For its chat template's `tools`: `{"type": "function", "function": {"name": ..., ...}}` each.
        described: What a system message says of them in place of a template that doesn't show tools.
    """

    schemas: tuple[Mapping[str, Any], ...]
    described: str


def tool_results(
    calls: Sequence[ToolCall], results: Mapping[str, str | tuple[str | Image, ...]]
) -> tuple[Message, ...]:
    """Answer every call once, in call order, keyed by call id.

    Args:
        calls: The calls of one assistant message.
        results: By call id, in any order: text, or text and images.

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
    return tuple(_result(call, results[call.id]) for call in calls)


def _result(call: ToolCall, content: str | tuple[str | Image, ...]) -> Message:
    text, parts = (content, ()) if isinstance(content, str) else ("", content)
    return Message(role="tool", content=text, parts=parts, tool_call_id=call.id, name=call.name or None)
