"""Serving the API's forms over HTTP, whoever answers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from tinker_actors.environments.openai.asked import Answered, Asked, Begun, CompletionAsked, Piece, Tell
from tinker_actors.environments.openai.body import Body
from tinker_actors.environments.openai.chat import ChatEvents, chat_completion, read_chat
from tinker_actors.environments.openai.completions import CompletionEvents, completion, read_completion
from tinker_actors.environments.openai.errors import ApiError
from tinker_actors.environments.openai.response_events import ResponseEvents
from tinker_actors.environments.openai.responses import read_response_request, response
from tinker_actors.environments.openai.speech import pieces_of
from tinker_actors.environments.threads import beside

logger = logging.getLogger(__name__)

MAX_BODY = 16 * 2**20
"""Bytes of a request's body."""

_GONE_AWAY = 499  # nobody reads it; what servers log for a client that left

A = TypeVar("A")
R = TypeVar("R")
R_contra = TypeVar("R_contra", contravariant=True)


class Events(Protocol[R_contra]):
    """An answer as a stream of events."""

    def told(self, told: Begun | Piece, /) -> Iterator[str]:
        """The events of a part."""
        ...

    def done(self, answered: R_contra, /) -> Iterator[str]:
        """The events at the end."""
        ...

    def failed(self, error: ApiError, /) -> Iterator[str]:
        """The events of an error amid the answer."""
        ...


class Form(Generic[A, R]):
    """One of the API's forms.

    Args:
        read: What a request's body asks.
        whole: The response.
        events: The same as a stream, given the request, its time and its body.
    """

    def __init__(
        self,
        read: Callable[[Body], A],
        whole: Callable[[R, A, int], dict[str, Any]],
        events: Callable[[A, int, Body], Events[R]],
    ) -> None:
        self.read, self.whole, self.events = read, whole, events


def _counts(body: Body) -> bool:
    options = body.get("stream_options", dict, needed="an object") or {}
    return bool(options.get("include_usage"))


CHAT: Form[Asked, Answered] = Form(
    read_chat, chat_completion, lambda asked, created, body: ChatEvents(asked, created, usage=_counts(body))
)
RESPONSES: Form[Asked, Answered] = Form(
    read_response_request, response, lambda asked, created, _: ResponseEvents(asked, created)
)
COMPLETIONS: Form[CompletionAsked, tuple[Answered, ...]] = Form(
    read_completion, completion, lambda asked, created, body: CompletionEvents(asked, created, usage=_counts(body))
)


async def served(
    request: Request,
    form: Form[A, R],
    answer: Callable[[A, Tell | None], Awaitable[R]],
    *,
    max_body: int = MAX_BODY,
) -> Response:
    """Read a request, have it answered, and write the answer.

    A client that goes away cancels the answering, before its first token and amid a stream.

    Args:
        request: The HTTP request.
        form: Which of the API's.
        answer: Answers what is asked.
        max_body: The most bytes of a request's body.

    Raises:
        ApiError: The request is refused.
        ClientDisconnect: The client went away before its request was there.
    """
    data, created = await _read(request, max_body), int(time.time())
    body = Body.read(data)
    asked = await beside(lambda: form.read(body), size=len(data))  # an image takes its time, and so do many messages
    if not body.flag("stream"):
        whole = asyncio.ensure_future(answer(asked, None))
        async with _cancelled_after(whole):
            if await _first_of(request, whole):
                return json_response(form.whole(whole.result(), asked, created))
            return Response(status_code=_GONE_AWAY)
    told: asyncio.Queue[Begun | Piece | None] = asyncio.Queue()
    events = form.events(asked, created, body)
    answering = asyncio.ensure_future(answer(asked, told.put_nowait))
    answering.add_done_callback(lambda _: told.put_nowait(None))
    first = asyncio.ensure_future(told.get())
    try:
        async with _cancelled_after(first):
            if not await _first_of(request, first):
                raise ClientDisconnect
            if first.result() is None:
                answering.result()  # refused before anything was said: an error with a status of its own
    except BaseException:  # a client that left, or a request that is cancelled, ends the answering too
        await _cancel(answering)
        raise
    return _Stream(_events(events, first.result(), told, answering), answering)


async def bounded(handle: Callable[[], Awaitable[Response]]) -> Response:
    """The boundary between HTTP and what serves it: whatever is raised becomes a response."""
    try:
        return await handle()
    except ApiError as error:
        return error_response(error)
    except ClientDisconnect:
        return Response(status_code=_GONE_AWAY)
    except Exception as error:  # a fault of ours or of what samples: told, logged, and the server goes on
        return error_response(_told(error))


def json_response(content: Mapping[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """JSON, quickly; a number that JSON can't say, such as a log-prob of minus infinity, is null."""
    return Response(orjson.dumps(content), status_code=status, headers=headers, media_type="application/json")


def error_response(error: ApiError) -> Response:
    """An error as a response."""
    headers = None if error.retry_after is None else {"Retry-After": str(max(1, round(error.retry_after)))}
    return json_response(error.body, error.status, headers)


def model_entry(name: str, *, created: int = 0, owner: str = "tinker_actors", **more: Any) -> dict[str, Any]:
    """A model as `GET /v1/models` lists it."""
    return {"id": name, "object": "model", "created": created, "owned_by": owner, **more}


async def _events(
    events: Events[R],
    first: Begun | Piece | None,
    told: asyncio.Queue[Begun | Piece | None],
    answering: asyncio.Future[R],
) -> AsyncIterator[str]:
    part, spoke = first, first is not None
    while part is not None:
        said = list(events.told(part))
        part = await told.get() if told.empty() else told.get_nowait()
        while part is not None and not told.empty() and len(said) < 64:  # what has gathered goes out together
            said += events.told(part)
            part = told.get_nowait()
        yield "".join(said)
    # the boundary of the stream: it has begun, so that errors are told in it
    try:
        answered = await answering
    except ApiError as error:
        yield "".join(events.failed(error))
        return
    except Exception as error:  # as in `bounded`
        yield "".join(events.failed(_told(error)))
        return
    said: list[str] = []
    if not spoke:  # who answers doesn't speak in parts
        for answer in answered if isinstance(answered, tuple) else (answered,):
            assert isinstance(answer, Answered)
            for piece in pieces_of(answer):
                said += events.told(piece)
    yield "".join([*said, *events.done(answered)])


class _Stream(StreamingResponse):
    """A stream of events whose end, whoever ends it, ends the answering."""

    def __init__(self, events: AsyncIterator[str], answering: asyncio.Future[Any]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._answering = answering

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await _cancel(self._answering)


async def _read(request: Request, max_body: int) -> bytes:
    size, parts = 0, list[bytes]()
    async for part in request.stream():
        size += len(part)
        if size > max_body:
            raise ApiError(
                f"the body has more than {max_body} bytes; that many are taken", status=413, code="too_large"
            )
        parts.append(part)
    return b"".join(parts)


async def _first_of(request: Request, future: asyncio.Future[Any]) -> bool:
    """Wait for a future, or for the client to go away; whether the future is done."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    left = asyncio.ensure_future(gone())
    async with _cancelled_after(left):
        await asyncio.wait((future, left), return_when=asyncio.FIRST_COMPLETED)
        return future.done()


@contextlib.asynccontextmanager
async def _cancelled_after(task: asyncio.Future[Any]) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await _cancel(task)


async def _cancel(task: asyncio.Future[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _told(error: Exception) -> ApiError:
    trace = secrets.token_hex(8)
    logger.error("a request failed; its trace id is %s", trace, exc_info=error)
    said = f"the server failed, and its log says how under the trace id {trace}"
    return ApiError(said, status=500, type="server_error", code="server_error")
