"""A response as a stream of events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from tinker_actors.environments.openai.asked import Answered, Asked, Begun, Choice, Piece
from tinker_actors.environments.openai.chat import token_logprobs
from tinker_actors.environments.openai.errors import ApiError
from tinker_actors.environments.openai.responses import items_of, outline, response, text_item


class ResponseEvents:
    """The events of one response.

    Args:
        asked: The request.
        created: When it came, in seconds since the epoch.
    """

    def __init__(self, asked: Asked, created: int) -> None:
        self._asked, self._created = asked, created
        self._number = 0
        self._id = ""
        self._text_begun = False

    def told(self, told: Begun | Piece) -> Iterator[str]:
        """The events of a part."""
        if isinstance(told, Begun):
            self._id = told.id
            begun = {**outline(told, self._asked, self._created), "status": "in_progress", "output": [], "usage": None}
            yield self._event("response.created", response=begun)
            yield self._event("response.in_progress", response=begun)
            return
        if told.text:
            yield from self._begin_text()
            logprobs = [token_logprobs(token) for token in told.shown] if self._asked.logprobs else []
            yield self._event("response.output_text.delta", delta=told.text, logprobs=logprobs, **self._inside)
        if told.choice is not None:
            yield from self._end(told.choice)

    def done(self, answered: Answered) -> Iterator[str]:
        """The event at the end."""
        whole = response(answered, self._asked, self._created)
        yield self._event(f"response.{whole['status']}", response=whole)

    def failed(self, error: ApiError) -> Iterator[str]:
        """The event of an error amid the answer."""
        yield self._event("error", message=str(error), code=error.code, param=error.param)

    @property
    def _inside(self) -> dict[str, Any]:
        return {"output_index": 0, "item_id": f"msg_{self._id}", "content_index": 0}

    def _begin_text(self) -> Iterator[str]:
        if self._text_begun:
            return
        self._text_begun = True
        item = text_item(self._id, "", "in_progress", [])
        (part,) = item["content"]
        yield self._event("response.output_item.added", output_index=0, item={**item, "content": []})
        yield self._event("response.content_part.added", part=part, **self._inside)

    def _end(self, choice: Choice) -> Iterator[str]:
        for place, item in enumerate(items_of(self._id, choice, self._asked)):
            if item["type"] == "message":
                yield from self._begin_text()
                (part,) = item["content"]
                said = {"text": part["text"], "logprobs": part["logprobs"]}
                yield self._event("response.output_text.done", **said, **self._inside)
                yield self._event("response.content_part.done", part=part, **self._inside)
            else:
                where = {"output_index": place, "item_id": item["id"]}
                begun = {**item, "arguments": "", "status": "in_progress"}
                said = {"arguments": item["arguments"]}
                yield self._event("response.output_item.added", output_index=place, item=begun)
                yield self._event("response.function_call_arguments.delta", delta=item["arguments"], **where)
                yield self._event("response.function_call_arguments.done", **said, name=item["name"], **where)
            yield self._event("response.output_item.done", output_index=place, item=item)

    def _event(self, kind: str, **fields: Any) -> str:
        data = orjson.dumps({"type": kind, "sequence_number": self._number, **fields}).decode()
        self._number += 1
        return f"event: {kind}\ndata: {data}\n\n"
