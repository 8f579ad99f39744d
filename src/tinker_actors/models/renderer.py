"""From messages to tokens and back, appending only: a sampled token is never re-encoded, dropped or counted twice."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tinker_actors.data import Message, ModelInput, ToolList, concatenate
from tinker_actors.errors import ModelError
from tinker_actors.models.templates import NAMED_TEMPLATES, REQUIRED_TOKENS, ChatTemplate
from tinker_actors.models.tokenizer import Tokenizer

# Stands for the end of an assistant's text while a template is asked what it writes next. Private-use characters
# bound it, so that no template's trimming touches it.
_SENTINEL = "\ue0f0end of action\ue0f1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """What the next prompt adds.

    Attributes:
        input: What to append to what is held; the whole prompt where `restarts`. None of it was sampled.
        restarts: The prompt does not continue the tokens held: they can't be appended to, and a new datum begins.
    """

    input: ModelInput
    restarts: bool

    @property
    def tokens(self) -> tuple[int, ...]:
        """One id for each position of `input`; an image's positions hold its placeholder."""
        return self.input.tokens


class Renderer:
    """Renders a growing conversation through a chat template, token-exact.

    An image becomes the positions that the model gives it, once: what is held already is never expanded again.

        renderer = Renderer(load_tokenizer("tiny-llama"))
        held = list(renderer.start([Message(role="user", content="1+1=")]).tokens)
        sampled = ...                                  # what the sampler returned, the stop token included
        held += sampled
        more = renderer.extend(held, conversation, [Message(role="user", content="wrong")], sampled)
        held = list(more.tokens) if more.restarts else [*held, *more.tokens]

    Args:
        tokenizer: The model's tokenizer.
        chat_template: None for the tokenizer's own, a name ("chatml"; "plain" for contents with no markup), or Jinja
            source.
        tools: Tool schemas that the template shows to the model.
        variables: Further template variables, for instance `{"enable_thinking": False}`.

    Attributes:
        stop_ids: Tokens that end an action: the template's end of an assistant turn, then the model's own.
        stop_text: What the template writes to close an assistant turn, without trailing space; may be empty.

    Raises:
        ModelError: There is no template, it does not compile, or the tokenizer lacks a named template's markup.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        chat_template: str | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self._template = ChatTemplate(
            _template_source(tokenizer, chat_template),
            variables={
                "bos_token": tokenizer.bos_token or "",
                "eos_token": tokenizer.eos_token or "",
                "pad_token": tokenizer.pad_token or "",
                "adds_bos": tokenizer.adds_bos,
                "tools": [dict(tool) for tool in tools] or None,
                **(variables or {}),
            },
        )
        self._introduction = ""
        self._end_of_turn, self.stop_text = self._closing_of_a_turn()
        self._opening = self._opening_of_a_turn()
        end_of_turn = () if self._end_of_turn is None else (self._end_of_turn,)
        self.stop_ids: tuple[int, ...] = tuple(dict.fromkeys((*end_of_turn, *tokenizer.stop_ids)))

    def with_tools(self, tools: ToolList) -> Renderer:
        """A renderer that shows tools: through the template where it reads `tools`, else in the system message."""
        other = copy.copy(self)
        if "tools" in self._template.reads:
            other._template = self._template.given(tools=[dict(schema) for schema in tools.schemas])
        else:
            other._introduction = tools.described
        return other

    def start(self, messages: Sequence[Message]) -> Rendered:
        """The whole prompt for a conversation, up to where the assistant speaks."""
        return Rendered(input=self._whole_prompt(messages), restarts=False)

    def extend(
        self, held: Sequence[int], messages: Sequence[Message], new: Sequence[Message], sampled: Sequence[int]
    ) -> Rendered:
        """What follows an action: the template's closing of the turn, the new messages and the next opening.

        Of the closing, what the sampled stop token already stands for is left out. A template that merely reformats
        white space around the action does not restart the prompt: the tokens stay as they were sampled. One that
        rewrites what was held (for instance strips earlier reasoning) does.

        Args:
            held: All tokens so far; ends with `sampled`.
            messages: The conversation that they stand for; the last one is the assistant's.
            new: The messages to append.
            sampled: The action's tokens as the sampler returned them, the stop token included.

        Raises:
            ModelError: The arguments contradict each other, or the template refuses the messages.
        """
        if not messages or messages[-1].role != "assistant":
            last = messages[-1].role if messages else "nothing"
            raise ModelError(f"extend needs a conversation that ends with the assistant's message, not {last}")
        if list(held[len(held) - len(sampled) :]) != list(sampled):
            raise ModelError(f"the {len(sampled)} sampled tokens are not the end of the {len(held)} tokens held")
        action = self.parse(sampled)
        marked = Message(role="assistant", content=action + _SENTINEL)
        before = self._text(messages[:-1], generation_prompt=True)
        now = self._text([*messages[:-1], marked, *new], generation_prompt=True)
        middle, found, rest = now.removeprefix(before).partition(_SENTINEL)
        if not now.startswith(before) or not found or middle.split() != action.split():
            return Rendered(input=self._whole_prompt([*messages, *new]), restarts=True)
        return Rendered(input=self._encoded(self._unsaid(rest, sampled), new, after=held[-1:]), restarts=False)

    def parse(self, sampled: Sequence[int]) -> str:
        """Text of an action: without the stop token and without special tokens."""
        kept = sampled[:-1] if sampled and sampled[-1] in self.stop_ids else sampled
        return self.tokenizer.decode(kept, skip_special=True)

    def told(self, sampled: Sequence[int], text: str) -> str:
        """An action's text as whoever answers it reads it: as the sampler gave it."""
        return text

    def encode_action(self, text: str) -> tuple[int, ...]:
        """Tokens of an action that was written rather than sampled (a demonstration), its stop token included.

        Raises:
            ModelError: No stop token is known.
        """
        if not self.stop_ids:
            raise ModelError("neither the chat template nor the tokenizer names a token that ends an action")
        return (*self.tokenizer.encode(text, after=self._opening), self.stop_ids[0])

    def written(self, messages: Sequence[Message]) -> str:
        """The text of the assistant's message that a conversation ends with, tool calls as the template writes them.

        Raises:
            ModelError: The template refuses the messages, or doesn't write the calls where the assistant speaks.
        """
        *before, last = messages
        if not last.tool_calls:
            return last.content
        prompt = self._text(before, generation_prompt=True)
        whole = self._text(messages, generation_prompt=False)
        if not whole.startswith(prompt):
            raise ModelError("the chat template writes tool calls elsewhere than after what opens an assistant turn")
        return whole.removeprefix(prompt).rstrip().removesuffix(self.stop_text).rstrip()

    def _text(self, messages: Sequence[Message], *, generation_prompt: bool) -> str:
        if self.tokenizer.images is None:
            for image in (image for message in messages for image in message.images):
                raise ModelError(
                    f"a message has an image of {image.width}x{image.height}; the model reads text alone, and one that "
                    "takes images is needed"
                )
        if self._introduction:
            head = messages[:1] if messages and messages[0].role == "system" else []
            said = "\n\n".join([*(message.content for message in head), self._introduction])
            messages = [Message(role="system", content=said), *messages[len(head) :]]
        return self._template.render(messages, generation_prompt=generation_prompt)

    def _whole_prompt(self, messages: Sequence[Message]) -> ModelInput:
        return self._encoded(self._text(messages, generation_prompt=True), messages)

    def _encoded(self, text: str, messages: Sequence[Message], *, after: Sequence[int] = ()) -> ModelInput:
        """Tokens of a text in which the template has written one placeholder for each image of these messages.

        Args:
            text: The text.
            messages: Those that it shows.
            after: The tokens that it goes on from, or the last of them.
        """
        ids, rule = self.tokenizer.encode(text, after=self.tokenizer.decode(after)), self.tokenizer.images
        if rule is None:
            return ModelInput.of(ids)
        images = [image for message in messages for image in message.images]
        places = [place for place, token in enumerate(ids) if token == rule.placeholder]
        if len(places) != len(images):
            raise ModelError(
                f"the rendered messages hold the image token {self.tokenizer.token_text(rule.placeholder)!r} "
                f"{len(places)} times for {len(images)} images; the template writes it once for each, and no text may"
            )
        parts: list[ModelInput] = []
        start = 0
        for place, image in zip(places, images, strict=True):
            parts += [ModelInput.of(ids[start:place]), ModelInput(chunks=(rule.chunk(image),))]
            start = place + 1
        return concatenate([*parts, ModelInput.of(ids[start:])])

    def _unsaid(self, rest: str, sampled: Sequence[int]) -> str:
        """`rest` (closing, new messages, opening) less what the end of the action already says."""
        if not sampled:
            return rest
        if sampled[-1] in self.stop_ids:
            stop = self.tokenizer.token_text(sampled[-1])
            # white space that the template puts before its stop token comes too late once that token was sampled
            unspaced = rest if rest.startswith(stop) else rest.lstrip()
            return unspaced.removeprefix(stop) if unspaced.startswith(stop) else rest
        # A closing that is ordinary text may have been sampled in several tokens, through a stop string, the last of
        # which may say more than it.
        if self._end_of_turn is None and self.stop_text and rest.startswith(self.stop_text):
            said = self.tokenizer.decode(sampled)
            place = said.rfind(self.stop_text)
            if place >= 0 and place + len(self.stop_text) > len(self.tokenizer.decode(sampled[:-1])):
                closing = said[place:]
                while not rest.startswith(closing):
                    closing = closing[:-1]
                return rest.removeprefix(closing)
        return rest

    def _closing_of_a_turn(self) -> tuple[int | None, str]:
        """The token, if it is one, and the text with which the template closes an assistant turn."""
        turn = [Message(role="user", content="-"), Message(role="assistant", content=_SENTINEL)]
        _, _, closing = self._template.render(turn, generation_prompt=False).partition(_SENTINEL)
        if not closing:
            return None, ""
        text = closing.strip() or closing
        first = self.tokenizer.encode(text)[0]
        first_text = self.tokenizer.token_text(first)
        if first in self.tokenizer.special_ids:
            return first, first_text
        return (first, text) if first_text == text else (None, text)

    def _opening_of_a_turn(self) -> str:
        """The last token's text of what an assistant turn begins with."""
        prompt = self._template.render([Message(role="user", content="-")], generation_prompt=True)
        return self.tokenizer.decode(self.tokenizer.encode(prompt)[-1:])


def _template_source(tokenizer: Tokenizer, chat_template: str | None) -> str:
    if chat_template is None:
        if tokenizer.chat_template is None:
            names = ", ".join(NAMED_TEMPLATES)
            raise ModelError(f"the tokenizer has no chat template of its own; name one of {names} or give Jinja source")
        return tokenizer.chat_template
    if chat_template in NAMED_TEMPLATES:
        missing = [token for token in REQUIRED_TOKENS.get(chat_template, ()) if tokenizer.token_id(token) is None]
        if missing:
            raise ModelError(f"the template {chat_template!r} needs the tokens {missing}, which the tokenizer lacks")
        return NAMED_TEMPLATES[chat_template]
    if "{" not in chat_template:
        names = ", ".join(NAMED_TEMPLATES)
        raise ModelError(f"unknown chat template {chat_template!r}: neither one of {names} nor Jinja source")
    return chat_template
