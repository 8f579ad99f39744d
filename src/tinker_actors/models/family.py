"""Renderers of the package `renderers`, which knows the formats of families of models to the token."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast
from urllib.parse import parse_qsl

from tinker_actors.data import Message, ModelInput, ToolCall, ToolList, read_sampled_json
from tinker_actors.errors import ModelError
from tinker_actors.models.renderer import Rendered
from tinker_actors.models.tokenizer import Tokenizer, half_pair

_NO_FAMILIES = ("auto", "custom", "default")  # a guess, code from a file, and a chat template
_WORD = "yes"
_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)


class FamilyRenderer:
    """A `ChatRenderer` by the package `renderers` (extra `renderers`): no template is rendered, no token guessed.

    The next prompt continues the sampled tokens where the family's format allows that; where it rewrites what was said,
    for instance drops earlier reasoning, the prompt restarts. Tool calls are read from tokens, so that a call's markup
    in ordinary text is no call; whoever answers is told of them in one form for all families, the `hermes` one.
    Images aren't rendered.

    Args:
        tokenizer: The model's tokenizer.
        family: The package's name of the family, with options after a question mark:
            `qwen3?enable_thinking=false`.
        tools: Tool schemas that the model is shown.

    Raises:
        ModelError: The package isn't installed, there is no such family or option, or the tokenizer lacks its tokens.
    """

    def __init__(self, tokenizer: Tokenizer, family: str, *, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        try:
            import renderers
            from renderers.configs import config_from_name
        except ImportError:
            raise ModelError(
                f"the chat template 'renderers:{family}' needs the package renderers: "
                "pip install 'tinker-actors[renderers]'"
            ) from None
        self.tokenizer = tokenizer
        self._family, _, options = family.partition("?")
        self._tools = [dict(tool) for tool in tools]
        with self._refused(f"the chat template 'renderers:{family}' can't be used"):
            config = None if self._family in _NO_FAMILIES else config_from_name(self._family)
            if config is None:
                raise ValueError(f"{self._family!r} is no family; name the model's")
            chosen = type(config).model_validate(dict(parse_qsl(options, strict_parsing=True)) if options else {})
            self._renderer: Any = renderers.create_renderer(_Backend(tokenizer), cast(Any, chosen))
        ends: list[int] = self._renderer.get_stop_token_ids()
        self.stop_ids: tuple[int, ...] = tuple(dict.fromkeys((*ends, *tokenizer.stop_ids)))
        self.stop_text = tokenizer.token_text(self.stop_ids[0])
        self._opening = self._opening_of_an_action()

    def with_tools(self, tools: ToolList) -> FamilyRenderer:
        """A renderer that shows tools, as the family's models were taught to read them."""
        other = copy.copy(self)
        other._tools = [dict(schema) for schema in tools.schemas]
        return other

    def start(self, messages: Sequence[Message]) -> Rendered:
        """The whole prompt for a conversation, up to where the assistant speaks."""
        return Rendered(input=ModelInput.of(self._ids(messages, prompts=True)), restarts=False)

    def extend(
        self, held: Sequence[int], messages: Sequence[Message], new: Sequence[Message], sampled: Sequence[int]
    ) -> Rendered:
        """What follows an action; the arguments as of `Renderer.extend`.

        Raises:
            ModelError: The arguments contradict each other, or the family has no form for the messages.
        """
        start = len(held) - len(sampled)
        if list(held[start:]) != list(sampled):
            raise ModelError(f"the {len(sampled)} sampled tokens are not the end of the {len(held)} tokens held")
        with self._refused("the conversation can't go on"):
            bridged = self._renderer.bridge_to_next_turn(
                list(held[:start]), list(sampled), self._dicts(new), tools=self._tools or None
            )
        if bridged is not None and bridged.token_ids[: len(held)] == list(held):
            return Rendered(input=ModelInput.of(bridged.token_ids[len(held) :]), restarts=False)
        return Rendered(input=ModelInput.of(self._ids([*messages, *new], prompts=True)), restarts=True)

    def parse(self, sampled: Sequence[int]) -> str:
        """Text of an action: without the stop token and without special tokens."""
        kept = sampled[:-1] if sampled and sampled[-1] in self.stop_ids else sampled
        return self.tokenizer.decode(kept, skip_special=True)

    def told(self, sampled: Sequence[int], text: str) -> str:
        """The text, its calls in the form `<tool_call>`, JSON, `</tool_call>`; one that can't be read as it stands."""
        with self._refused("an action can't be read"):
            try:
                parsed = self._renderer.parse_response(list(sampled), tools=self._tools or None)
            except RecursionError:  # of brackets by the thousand, which models do write
                return text
        if not parsed.tool_calls:
            return text
        calls = [f"<tool_call>\n{_whole(call) or call.raw}\n</tool_call>" for call in parsed.tool_calls]
        thought = [f"<think>\n{parsed.reasoning_content}\n</think>"] if parsed.reasoning_content else []
        return "\n".join([*thought, *([parsed.content] if parsed.content else []), *calls])

    def encode_action(self, text: str) -> tuple[int, ...]:
        """Tokens of an action that was written rather than sampled (a demonstration), its stop token included."""
        return (*self.tokenizer.encode(text, after=self._opening), self.stop_ids[0])

    def written(self, messages: Sequence[Message]) -> str:
        """The text of the assistant's message that a conversation ends with, calls and reasoning as the family's.

        Raises:
            ModelError: The family has no form for the messages, or writes them elsewhere than after a prompt.
        """
        prompt, whole = self._ids(messages[:-1], prompts=True), self._ids(messages, prompts=False)
        if whole[: len(prompt)] != prompt:
            raise ModelError(
                f"'renderers:{self._family}' writes the assistant's message elsewhere than after what opens its turn"
            )
        action = whole[len(prompt) :]
        ends = [place for place, token in enumerate(action) if token in self.stop_ids]
        return self.tokenizer.decode(action[: ends[-1]] if ends else action)

    def _opening_of_an_action(self) -> str:
        """What an action goes on from: nothing where the family writes it as a text of its own."""
        alone, amid = self.tokenizer.encode(_WORD), self.tokenizer.encode(_WORD, after="\n")
        if alone == amid:  # the tokenizer begins no text with a space
            return ""
        turn = [Message(role="user", content="-"), Message(role="assistant", content=_WORD)]
        said = self._ids(turn, prompts=False)
        return "" if any(said[place : place + len(alone)] == alone for place in range(len(said))) else "\n"

    def _ids(self, messages: Sequence[Message], *, prompts: bool) -> list[int]:
        with self._refused("the messages can't be rendered"):
            return self._renderer.render_ids(
                self._dicts(messages), tools=self._tools or None, add_generation_prompt=prompts
            )

    def _dicts(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        for message in messages:
            if message.images:
                raise ModelError(f"a message has an image; 'renderers:{self._family}' renders text only")
        return [_dict(message) for message in messages]

    @contextmanager
    def _refused(self, what: str) -> Iterator[None]:
        """The package raises whatever its code runs into for what it wasn't made for."""
        try:
            yield
        except ModelError:
            raise
        except Exception as error:  # the boundary of the package, which has no errors of its own
            why = " ".join(str(error).split())
            raise ModelError(f"{what} (package renderers, family {self._family!r}): {why}") from error


class _Backend:
    """A tokenizer as the package wants it."""

    name_or_path = ""
    unk_token_id = None

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id, self.bos_token_id, self.pad_token_id = tokenizer.eos_id, tokenizer.bos_id, tokenizer.pad_id

    def encode(self, text: str, **_: Any) -> list[int]:
        return self._tokenizer.encode(text)

    def decode(self, ids: int | Sequence[int], *, skip_special_tokens: bool = False, **_: Any) -> str:
        ids = [ids] if isinstance(ids, int) else list(ids)
        return self._tokenizer.decode(ids, skip_special=skip_special_tokens)

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> Any:
        if isinstance(tokens, str):
            return self._tokenizer.token_id(tokens)
        return [self._tokenizer.token_id(token) for token in tokens]


def _dict(message: Message) -> dict[str, Any]:
    content, calls = message.content, message.tool_calls
    if message.role == "assistant" and not calls:  # as `told` has put them into the text
        calls = tuple(
            ToolCall(id=str(place), name=call["name"], arguments=json.dumps(call["arguments"], ensure_ascii=False))
            for place, text in enumerate(_CALL.findall(content))
            if (call := _read(text)) is not None
        )
        content = _CALL.sub("", content).rstrip() if calls else content
    said: dict[str, Any] = {"role": message.role, "content": content}
    if calls:
        said["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _arguments(call)}}
            for call in calls
        ]
    for key, value in (("tool_call_id", message.tool_call_id), ("name", message.name)):
        if value is not None:
            said[key] = value
    return said


def _whole(call: Any) -> str | None:
    """The JSON of a call that the package has read; None if it could not, or if the JSON is no text."""
    if call.status != "ok" or not call.name:
        return None
    said = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
    return None if half_pair(said) else said


def _arguments(call: ToolCall) -> Any:
    try:
        return read_sampled_json(call.arguments)
    except ValueError:
        return call.arguments


def _read(text: str) -> dict[str, Any] | None:
    try:
        call = read_sampled_json(text)
    except ValueError:
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str) or "arguments" not in call:
        return None
    return cast("dict[str, Any]", call)
