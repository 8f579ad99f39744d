"""Ways to run a harness: a Python function, or a command."""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tinker_actors.data import Image, Message
from tinker_actors.environments.loading import load_function
from tinker_actors.environments.threads import CallThread
from tinker_actors.errors import ConfigError, EpisodeError

_MOST_OUTPUT = 2**20
"""Bytes that a command may write; it answers with text for an environment."""
_SHOWN = 2000  # characters of a failed command's error output
_ENDING = 2.0  # seconds that a command has between SIGTERM and SIGKILL


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessCall:
    """What a harness is given for one answer. Messages and tools are plain data in the form of the OpenAI API.

    Attributes:
        base_url: Of the endpoint, `/v1` included.
        api_key: The seat's, good until its episode ends.
        model: The name of the model there. Any other does as well.
        observation: The messages that the seat has been shown since it last acted.
        messages: All that it was shown and answered in the episode, for harnesses that remember nothing.
        tools: Schemas of the environment's tools, if it has such.
        seat: The seat.
        turn: How often it has acted before.
    """

    base_url: str
    api_key: str
    model: str
    observation: list[dict[str, Any]]
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    seat: str = "agent"
    turn: int = 0

    @property
    def text(self) -> str:
        """The observation's text."""
        return "\n\n".join(text_of(message["content"]) for message in self.observation)

    @property
    def keyed_url(self) -> str:
        """A base URL with the key in its path, for harnesses that take no key."""
        return f"{self.base_url.removesuffix('/v1')}/{self.api_key}/v1"


class Harness(Protocol):
    """Answers an observation by calls to a model."""

    async def run(self, call: HarnessCall, /) -> str:
        """The action's text. Cancelled past the time limit; leaves nothing running then.

        Raises:
            EpisodeError: It failed.
        """
        ...


class FunctionHarness:
    """A Python function, plain or async, from a `HarnessCall` to the action's text.

    A plain one runs in a thread of its own, so that it may block. Python can't stop a thread: one that passes its
    limit goes on in vain, with an endpoint that refuses it.
    """

    def __init__(self, function: Callable[..., str | Awaitable[str]], options: Mapping[str, Any] | None = None) -> None:
        self._function = function
        self._options = dict(options or {})

    async def run(self, call: HarnessCall, /) -> str:
        """Call it.

        Raises:
            EpisodeError: It returned something else than text.
        """
        if inspect.iscoroutinefunction(self._function):
            given = await self._function(call, **self._options)
        else:
            thread = CallThread("harness")
            try:
                given = await thread.call(lambda: self._function(call, **self._options))
            finally:
                thread.end()
            given = await given if inspect.isawaitable(given) else given
        if not isinstance(given, str):
            raise EpisodeError(f"the harness returned {given!r} ({type(given).__name__}); the action's text is needed")
        return given


class CommandHarness:
    """A command; what it writes to its standard output, less the white space around it, is the action's text.

    Its environment has `OPENAI_BASE_URL`, `OPENAI_API_KEY` and `OPENAI_MODEL` besides this process's own, its standard
    input a JSON object with `observation`, `messages`, `tools`, `model`, `seat` and `turn`. In an argument `{text}`
    stands for the observation's text, `{base_url}`, `{keyed_url}`, `{api_key}` and `{model}` for what they say.
    """

    def __init__(self, command: Sequence[str]) -> None:
        if not command:
            raise ConfigError("command is empty; a program and its arguments are needed")
        self._command = tuple(command)

    async def run(self, call: HarnessCall, /) -> str:
        """Run it, in a process group of its own, which is ended with it.

        Raises:
            EpisodeError: It can't be started, writes too much, or ends with another exit code than 0.
        """
        told = {name: getattr(call, name) for name in ("observation", "messages", "tools", "model", "seat", "turn")}
        own = {"OPENAI_BASE_URL": call.base_url, "OPENAI_API_KEY": call.api_key, "OPENAI_MODEL": call.model}
        try:
            process = await asyncio.create_subprocess_exec(
                *(_filled(argument, call) for argument in self._command),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**os.environ, **own},
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise EpisodeError(f"harness {self._command[0]!r} can't be started: {error}") from None
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        telling = asyncio.create_task(_tell(process.stdin, json.dumps(told).encode()))
        hearing = asyncio.create_task(_upto(process.stdout, _MOST_OUTPUT))
        blame = asyncio.create_task(_upto(process.stderr, _MOST_OUTPUT))
        try:
            _, out, err, code = await asyncio.gather(telling, hearing, blame, process.wait())
        finally:
            for task in (telling, hearing, blame):
                task.cancel()
            await asyncio.wait((telling, hearing, blame))
            await _end(process)
        said = out.decode(errors="replace")
        if code != 0:
            complaint = err.decode(errors="replace").strip()[-_SHOWN:]
            raise EpisodeError(
                f"harness {self._command[0]!r} ended with exit code {code}: {complaint or said[-_SHOWN:]}"
            )
        return said.strip()


def load_harness(path: str) -> Callable[..., Any]:
    """The function of a harness, from `package.module:function` or `path/to/file.py:function`.

    Raises:
        ConfigError: It isn't found, or can't be called with a `HarnessCall`.
    """
    source, _, name = path.rpartition(":")
    if not (source and name):
        raise ConfigError(f"harness is {path!r}; package.module:function or path/to/file.py:function is needed")
    try:
        return load_function(path)
    except ConfigError as error:
        raise ConfigError(f"harness {path!r} is not found: {error}") from error


def check_harness(function: Callable[..., Any], path: str, options: Mapping[str, Any]) -> None:
    """Find out whether a harness's function takes what it is given.

    Raises:
        ConfigError: It doesn't.
    """
    try:
        inspect.signature(function).bind(None, **options)
    except TypeError as error:
        named = "".join(f", {key}={value!r}" for key, value in options.items())
        raise ConfigError(f"harness {path!r} can't be called with (call{named}): {error}") from None


def as_sent(message: Message) -> dict[str, Any]:
    """A message as a client of the API would send it."""
    content: Any = message.content
    if message.parts:
        content = [_part(part) for part in message.parts]
    sent: dict[str, Any] = {"role": message.role, "content": content}
    if message.tool_calls:
        sent["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        sent["tool_call_id"] = message.tool_call_id
    return sent


def text_of(content: Any) -> str:
    """The text of a message's content."""
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if part["type"] == "text")


def _part(part: str | Image) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    url = f"data:image/{part.format};base64,{base64.b64encode(part.data).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def _filled(argument: str, call: HarnessCall) -> str:
    for name in ("text", "base_url", "keyed_url", "api_key", "model"):
        if (mark := f"{{{name}}}") in argument:
            return getattr(call, name).join(_filled(part, call) for part in argument.split(mark))
    return argument


async def _tell(stream: asyncio.StreamWriter, data: bytes) -> None:
    try:
        stream.write(data)
        await stream.drain()
        stream.close()
        await stream.wait_closed()
    except (BrokenPipeError, ConnectionResetError):
        return  # it doesn't listen, which is its own affair


async def _upto(stream: asyncio.StreamReader, most: int) -> bytes:
    parts, size = list[bytes](), 0
    while part := await stream.read(65536):
        size += len(part)
        if size > most:
            raise EpisodeError(f"the harness wrote more than {most} bytes; what it writes is the action's text")
        parts.append(part)
    return b"".join(parts)


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the command and whatever it has started in its process group."""
    _signal(process.pid, signal.SIGTERM)
    if process.returncode is None:
        try:
            async with asyncio.timeout(_ENDING):
                await process.wait()
        except TimeoutError:
            pass
    _signal(process.pid, signal.SIGKILL)
    if process.returncode is None:
        await process.wait()
    for stream in (process.stdout, process.stderr):
        await _drained(stream)


async def _drained(stream: asyncio.StreamReader | None) -> None:
    """Read to the end what nobody reads any more: only then does the event loop let go of the pipe."""
    if stream is None:
        return
    try:
        async with asyncio.timeout(_ENDING):
            while await stream.read(65536):
                pass
    except TimeoutError:
        return  # held by a process that left the group


def _signal(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return  # nobody of it is left
