"""Chat templates: compiled in a sandbox with what published templates expect to find there."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tinker_actors.data import Message, read_sampled_json
from tinker_actors.errors import ModelError

CHATML = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' + message.content }}
{%- for call in message.tool_calls or [] -%}
{{ '\\n<tool_call>\\n' + (call.function | tojson) + '\\n</tool_call>' }}
{%- endfor -%}
{{ '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\\n' }}
{%- endif -%}
"""

# Contents one after the other with no markup: text completion, base models.
PLAIN = "{{ bos_token if adds_bos else '' }}{% for message in messages %}{{ message.content }}{% endfor %}"

NAMED_TEMPLATES: Mapping[str, str] = {"chatml": CHATML, "plain": PLAIN}
# A named template is refused where its markup would fall apart into ordinary text.
REQUIRED_TOKENS: Mapping[str, tuple[str, ...]] = {"chatml": ("<|im_start|>", "<|im_end|>")}


class ChatTemplate:
    """A compiled template. Rendering is a pure function of its arguments: the date is the one of construction.

    Attributes:
        reads: The variables that it reads.

    Raises:
        ModelError: The template's syntax is wrong.
    """

    def __init__(self, source: str, *, variables: Mapping[str, Any]) -> None:
        now = datetime.now().astimezone()
        environment = _environment(now)
        try:
            self._template = environment.from_string(source)
            self.reads = frozenset(meta.find_undeclared_variables(environment.parse(source)))
        except jinja2.TemplateError as error:
            raise ModelError(f"the chat template can't be compiled: {error}") from error
        self._variables = dict(variables)

    def given(self, **variables: Any) -> ChatTemplate:
        """The same template with other values of variables."""
        other = copy.copy(self)
        other._variables = {**self._variables, **variables}
        return other

    def render(self, messages: Sequence[Message], *, generation_prompt: bool) -> str:
        """Text of a conversation.

        Raises:
            ModelError: The template refuses the messages (it may raise on purpose) or fails.
        """
        try:
            try:
                return self._render(messages, generation_prompt, parse_arguments=True)
            except TypeError:  # some templates write arguments as text, most as a value through tojson
                return self._render(messages, generation_prompt, parse_arguments=False)
        except (jinja2.TemplateError, TypeError, ValueError, LookupError) as error:
            roles = ", ".join(message.role for message in messages)
            images = " (an image is among them, which not every template takes)" if _images(messages) else ""
            raise ModelError(
                f"the chat template can't render messages with roles [{roles}]{images}: {error}"
            ) from error

    def _render(self, messages: Sequence[Message], generation_prompt: bool, *, parse_arguments: bool) -> str:
        conversation = [_as_mapping(message, parse_arguments) for message in messages]
        return self._template.render(self._variables, messages=conversation, add_generation_prompt=generation_prompt)


def _as_mapping(message: Message, parse_arguments: bool) -> dict[str, Any]:
    entry: dict[str, Any] = {"role": message.role, "content": _content(message)}
    if message.tool_calls:
        entry["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": _parsed(call.arguments) if parse_arguments else call.arguments,
                },
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        entry["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        entry["name"] = message.name
    return entry


def _content(message: Message) -> str | list[dict[str, str]]:
    # text alone stays a string: many templates take nothing else
    if not message.parts:
        return message.content
    return [{"type": "text", "text": part} if isinstance(part, str) else {"type": "image"} for part in message.parts]


def _parsed(text: str) -> Any:
    try:
        return read_sampled_json(text)
    except ValueError:
        return text  # what is not JSON stays as it was sampled


def _images(messages: Sequence[Message]) -> bool:
    return any(message.images for message in messages)


class _Generation(Extension):
    """`{% generation %}` marks the assistant's part for trainers that mask by template; here it only renders."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares the attribute this way

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment(now: datetime) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    strftime_now: Callable[[str], str] = now.strftime
    environment.globals["strftime_now"] = strftime_now
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes for HTML and sorts keys, which would change the prompt
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
