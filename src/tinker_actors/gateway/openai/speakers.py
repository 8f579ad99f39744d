"""What each served model needs to be spoken to: its tokenizer, its chat template and its form of tool calls."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from tinker_actors.data import Message
from tinker_actors.environments.openai.errors import ApiError
from tinker_actors.environments.tools.formats import ToolFormat, tool_format
from tinker_actors.gateway.runtime import Runtime, ServedModel
from tinker_actors.models.catalogue import load_tokenizer
from tinker_actors.models.rendering import ChatRenderer, load_renderer
from tinker_actors.models.tokenizer import Tokenizer

MOST_REMEMBERED = 64 * 2**20
"""Characters and image bytes of conversations that later requests may go on from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speaker:
    """How one served model is spoken to.

    Attributes:
        served: The model.
        tokenizer: Its tokenizer.
        renderer: Turns conversations into prompts; None where the model has no chat template.
        format: How it writes the calls of tools.
    """

    served: ServedModel
    tokenizer: Tokenizer
    renderer: ChatRenderer | None
    format: ToolFormat

    @classmethod
    def of(cls, served: ServedModel) -> Speaker:
        """Load what is needed; takes a moment."""
        tokenizer = load_tokenizer(served.catalogue_name)
        template = served.chat_template or tokenizer.chat_template
        renderer = None if template is None else load_renderer(tokenizer, served.chat_template or None)
        # models whose template mentions Llama's tag write calls as plain JSON; most others between Hermes's tags
        shown = "json" if template and "python_tag" in template and "<tool_call>" not in template else "hermes"
        return cls(
            served=served,
            tokenizer=tokenizer,
            renderer=renderer,
            format=tool_format(served.tool_format or shown),
        )

    @property
    def chats(self) -> ChatRenderer:
        """The renderer.

        Raises:
            ApiError: There is none.
        """
        if self.renderer is None:
            raise ApiError(
                f"{self.served.name} has no chat template; /v1/completions goes on from texts, or its operator may "
                "name a chat_template",
                param="model",
                code="no_chat_template",
            )
        return self.renderer


class Speakers:
    """The speakers of a runtime's models, loaded when first spoken to, and the conversations that they remember.

    Args:
        runtime: The models.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._loading: dict[str, asyncio.Task[Speaker]] = {}
        self.remembered = Remembered()

    async def of(self, model: str) -> Speaker:
        """The speaker of a served base model.

        Raises:
            RefusalError: It isn't served.
        """
        served = self._runtime.engines_of(model).served
        if model not in self._loading:
            self._loading[model] = asyncio.create_task(asyncio.to_thread(Speaker.of, served))
        try:
            return await asyncio.shield(self._loading[model])
        except Exception:  # whatever it was, who asks next has it loaded again
            self._loading.pop(model, None)
            raise


class Remembered:
    """Conversations by the id of the answer that they ended with; the ones longest unused make room.

    Args:
        most: Characters and image bytes of all together.
    """

    def __init__(self, most: int = MOST_REMEMBERED) -> None:
        self._most, self._size = most, 0
        self._kept: OrderedDict[tuple[str, str], tuple[tuple[Message, ...], int]] = OrderedDict()

    def keep(self, tenant: str, id: str, messages: tuple[Message, ...]) -> None:
        """Remember a conversation, whose last message is the answer."""
        size = sum(_size(message) for message in messages)
        if size > self._most:
            return
        self._kept[tenant, id] = (messages, size)
        self._size += size
        while self._size > self._most:
            _, (_, gone) = self._kept.popitem(last=False)
            self._size -= gone

    def find(self, tenant: str, id: str) -> tuple[Message, ...]:
        """A conversation of this tenant.

        Raises:
            ApiError: It is not remembered.
        """
        key = (tenant, id)
        if key not in self._kept:
            raise ApiError(
                f"previous_response_id is 'resp_{id}', which is not known here (any more); send the conversation",
                status=404,
                param="previous_response_id",
                code="previous_response_not_found",
            )
        self._kept.move_to_end(key)
        return self._kept[key][0]


def _size(message: Message) -> int:
    calls = sum(len(call.arguments) + len(call.name) for call in message.tool_calls)
    return 100 + len(message.content) + calls + sum(len(image.data) for image in message.images)
