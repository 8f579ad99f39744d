"""What turns conversations into tokens: through a chat template, or by what a library knows of a family of models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tinker_actors.data import Message, ToolList
from tinker_actors.models.renderer import Rendered, Renderer
from tinker_actors.models.tokenizer import Tokenizer

FAMILY = "renderers:"
"""Begins the name of a family of the package `renderers`, in the place of a chat template."""


class ChatRenderer(Protocol):
    """Renders a growing conversation, token-exact; see `Renderer` for the contract of each part."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        ...

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Tokens that end an action, the usual one first."""
        ...

    @property
    def stop_text(self) -> str:
        """What closes an assistant turn; may be empty."""
        ...

    def with_tools(self, tools: ToolList) -> ChatRenderer:
        """A renderer that shows tools."""
        ...

    def start(self, messages: Sequence[Message]) -> Rendered:
        """The whole prompt for a conversation, up to where the assistant speaks."""
        ...

    def extend(
        self, held: Sequence[int], messages: Sequence[Message], new: Sequence[Message], sampled: Sequence[int]
    ) -> Rendered:
        """What follows an action."""
        ...

    def parse(self, sampled: Sequence[int]) -> str:
        """Text of an action: without the stop token and without special tokens."""
        ...

    def told(self, sampled: Sequence[int], text: str) -> str:
        """An action's text, given as the sampler decoded it, as whoever answers it reads it."""
        ...

    def encode_action(self, text: str) -> tuple[int, ...]:
        """Tokens of an action that was written rather than sampled, its stop token included."""
        ...

    def written(self, messages: Sequence[Message]) -> str:
        """The text of the assistant's message that a conversation ends with, its tool calls included."""
        ...


def load_renderer(
    tokenizer: Tokenizer,
    chat_template: str | None = None,
    *,
    tools: Sequence[Mapping[str, Any]] = (),
) -> ChatRenderer:
    """A renderer for a model.

    Args:
        tokenizer: The model's tokenizer.
        chat_template: As `Renderer` takes it; or `renderers:FAMILY`, such as `renderers:qwen3` or
            `renderers:qwen3?enable_thinking=false`, for a `FamilyRenderer`.
        tools: Tool schemas that the model is shown.

    Raises:
        ModelError: There is no such template or family, or it doesn't fit the tokenizer.
    """
    if chat_template is not None and chat_template.startswith(FAMILY):
        from tinker_actors.models.family import FamilyRenderer

        return FamilyRenderer(tokenizer, chat_template.removeprefix(FAMILY), tools=tools)
    return Renderer(tokenizer, chat_template, tools=tools)
