"""Tools of MCP servers, through the official `mcp` package (extra `mcp`): a process over its pipes, or an address."""

from __future__ import annotations

import asyncio
import base64
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tinker_actors.data import Image
from tinker_actors.environments.tools.tool import Content, Tool, ToolError
from tinker_actors.errors import ConfigError, EpisodeError

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import CallToolResult


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer:
    """A server, as plain data.

    Attributes:
        command: Program and arguments of one that is started for each session and ended with it; or
        url: The address of one that runs already (streamable HTTP).
        env: Environment variables for `command`, besides the few that the package passes on.
        cwd: Where `command` is started.
        tools: Names of the tools to take; None for all.
        prefix: Put before the tools' names, where those of several servers would clash.
        seconds: How long connecting may take.
    """

    command: tuple[str, ...] = ()
    url: str = ""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    cwd: str | None = None
    tools: tuple[str, ...] | None = None
    prefix: str = ""
    seconds: float = 30.0

    def __post_init__(self) -> None:
        if bool(self.command) == bool(self.url):
            raise ConfigError(
                f"an MCP server has command {self.command!r} and url {self.url!r}; exactly one of them is needed"
            )

    @property
    def shown(self) -> str:
        """What errors call it."""
        return self.url or " ".join(self.command)


class McpSession:
    """A connection to a server. It lives in a task of its own, whatever task opens and closes it."""

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._over = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._client: Client | None = None

    async def open(self) -> tuple[Tool, ...]:
        """Connect; the server's tools.

        Raises:
            ConfigError: The package is not installed, or the server lacks a tool that is to be taken.
            EpisodeError: The server can't be started or reached.
        """
        opened: asyncio.Future[tuple[Tool, ...]] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._live(opened))
        try:
            async with asyncio.timeout(self._server.seconds):
                return await opened
        except TimeoutError:
            raise EpisodeError(
                f"MCP server {self._server.shown!r} wasn't ready in {self._server.seconds:g} s"
            ) from None
        finally:
            if opened.cancelled():
                await self.close()

    async def close(self) -> None:
        """Disconnect, and end the process if there is one."""
        task, self._task = self._task, None
        if task is None:
            return
        if self._client is None:  # it still connects
            task.cancel()
        self._over.set()
        await asyncio.wait({task})

    async def _live(self, opened: asyncio.Future[tuple[Tool, ...]]) -> None:
        # The boundary to the package and the server: what they raise is the session's failure.
        try:
            async with _client(self._server) as client:
                tools = await self._tools(client)
                self._client = client
                if not opened.done():
                    opened.set_result(tools)
                await self._over.wait()
        except Exception as error:  # told to whoever opens, or calls
            if not opened.done():
                cause = _innermost(error)
                line = f"MCP server {self._server.shown!r} can't be used: {type(cause).__name__}: {cause}"
                opened.set_exception(cause if isinstance(cause, ConfigError) else EpisodeError(line))
        finally:
            self._client = None

    async def _tools(self, client: Client) -> tuple[Tool, ...]:
        found: dict[str, Tool] = {}
        cursor: str | None = None
        while True:
            page = await client.list_tools(cursor=cursor)
            for entry in page.tools:
                found[entry.name] = Tool(
                    name=self._server.prefix + entry.name,
                    description=entry.description or "",
                    parameters=entry.input_schema,
                    call=_Call(self, entry.name),
                )
            cursor = page.next_cursor
            if cursor is None:
                break
        wanted = self._server.tools
        if missing := [name for name in wanted or () if name not in found]:
            raise ConfigError(f"MCP server {self._server.shown!r} has no tools {missing}; it has {list(found)}")
        return tuple(found[name] for name in (found if wanted is None else wanted))

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Content:
        """Call a tool.

        Raises:
            ToolError: The server says that the call failed.
            EpisodeError: The server is gone, which is no fault of the policy's.
        """
        from mcp import MCPError

        client, task = self._client, self._task
        if client is None or task is None:
            raise EpisodeError(f"MCP server {self._server.shown!r} is gone")
        calling = asyncio.ensure_future(client.call_tool(name, dict(arguments)))
        try:
            await asyncio.wait({calling, task}, return_when=asyncio.FIRST_COMPLETED)
            if not calling.done():
                raise EpisodeError(f"MCP server {self._server.shown!r} is gone")
            return _content(calling.result())
        except MCPError as error:
            if "closed" in str(error).lower():
                raise EpisodeError(f"MCP server {self._server.shown!r} is gone: {error}") from error
            raise ToolError(str(error)) from error
        finally:
            calling.cancel()


@dataclass(frozen=True, slots=True)
class _Call:
    session: McpSession
    name: str

    async def __call__(self, arguments: Mapping[str, Any]) -> Content:
        return await self.session.call(self.name, arguments)


def _client(server: McpServer) -> Client:
    try:
        from mcp import Client, StdioServerParameters, stdio_client
    except ImportError as error:
        raise ConfigError("tools of MCP servers need the package mcp: pip install 'tinker-actors[mcp]'") from error
    if server.url:
        return Client(server.url)
    program, *arguments = server.command
    parameters = StdioServerParameters(command=program, args=arguments, env=dict(server.env), cwd=server.cwd)
    return Client(stdio_client(parameters, errlog=sys.__stderr__ or sys.stderr))


def _content(result: CallToolResult) -> Content:
    parts: list[str | Image] = []
    for block in result.content:
        if block.type == "text":
            parts.append(block.text)
        elif block.type == "image":
            parts.append(Image.of(base64.b64decode(block.data)))
        elif block.type == "resource":
            parts.append(getattr(block.resource, "text", f"[{block.resource.uri}]"))
        else:
            parts.append(f"[{block.type}]")
    text = "\n".join(part for part in parts if isinstance(part, str))
    if result.is_error:
        raise ToolError(text or "the tool failed")
    return tuple(parts) if any(isinstance(part, Image) for part in parts) else text


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return error
