"""A seat's conversation in tokens: appended to, never encoded again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tinker_actors.data import Message, ModelInput
from tinker_actors.errors import ContextOverflowError
from tinker_actors.models.rendering import ChatRenderer

Overflow = Literal["refuse", "keep_last"]
"""What to do with a prompt that is too long: refuse it, or keep exactly its last tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What a policy sees before it acts.

    Attributes:
        input: The whole prompt.
        appended: What was appended to the tokens that the trajectory already holds; the whole prompt if `restarts`.
        restarts: Whether the prompt doesn't continue those tokens.
    """

    input: ModelInput
    appended: ModelInput
    restarts: bool


class Conversation:
    """The messages of one seat and the tokens that stand for them.

    Args:
        renderer: Turns messages into tokens, appending only.
        max_prompt: The most tokens that a prompt may have; None for no limit.
        overflow: What happens to a longer one. `keep_last` gives exactly the last `max_prompt` tokens of it, as they
            are, and a new datum begins there.
    """

    def __init__(self, renderer: ChatRenderer, *, max_prompt: int | None = None, overflow: Overflow = "refuse") -> None:
        self._renderer = renderer
        self._max_prompt = max_prompt
        self._overflow: Overflow = overflow
        self._messages: list[Message] = []
        self._held = ModelInput()
        self._sampled: tuple[int, ...] = ()
        self._hidden = 0  # how many of the held tokens `keep_last` has dropped from view

    def begun_anew(self, renderer: ChatRenderer) -> Conversation:
        """An empty one of the same limits."""
        return Conversation(renderer, max_prompt=self._max_prompt, overflow=self._overflow)

    def observe(self, messages: Sequence[Message]) -> Prompt:
        """Append an observation.

        Raises:
            ContextOverflowError: The prompt is longer than `max_prompt` and `overflow` is "refuse"; names both lengths.
            DataError: `keep_last` would cut through an image.
        """
        if not self._messages:
            rendered = self._renderer.start(messages)
        else:
            rendered = self._renderer.extend(self._held.tokens, self._messages, messages, self._sampled)
        appended, restarts = rendered.input, rendered.restarts
        whole = appended if restarts else self._held + appended
        hidden = 0 if restarts else self._hidden
        if self._max_prompt is not None and len(whole) - hidden > self._max_prompt:
            if self._overflow == "refuse":
                raise ContextOverflowError(
                    f"the prompt has {len(whole) - hidden} tokens and max_prompt is {self._max_prompt}; raise "
                    'max_prompt, or set overflow="keep_last" to keep exactly the last ones'
                )
            hidden = len(whole) - self._max_prompt
            # at the first turn nothing is held, so that there is nothing to restart from
            restarts = restarts or bool(self._held.chunks)
            appended = whole.last(self._max_prompt)
        self._messages.extend(messages)
        self._held, self._hidden = whole, hidden
        seen = whole.last(len(whole) - hidden) if hidden else whole
        return Prompt(input=seen, appended=appended, restarts=restarts)

    def act(self, tokens: Sequence[int], text: str) -> None:
        """Append an action: its tokens as they were sampled, its text for the template."""
        self._sampled = tuple(tokens)
        self._held = self._held + ModelInput.of(self._sampled)
        self._messages.append(Message(role="assistant", content=text))
