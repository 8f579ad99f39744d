"""The HTTP server of one process: on the loopback interface, open for those alone who hold a key."""

from __future__ import annotations

import asyncio
import importlib.util
import secrets
import socket
from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from typing import TYPE_CHECKING

from tinker_actors.environments.openai.errors import ApiError
from tinker_actors.errors import ConfigError

if TYPE_CHECKING:
    from tinker_actors.environments.outside.http import Named

HOST = "127.0.0.1"
_REMEMBERED = 10_000  # keys that are told that their episode is over, rather than that nobody knows them
_ENDING = 2.0  # seconds in which requests under way may end when the server does


class EndpointServer:
    """Serves the OpenAI-compatible API to harnesses, each with a key of its own; starts with the first one.

    It installs no signal handlers and polls nothing: it lives in the loop that it is started in.

    Args:
        port: 0 takes any that is free.
    """

    def __init__(self, port: int = 0) -> None:
        self._port = port
        self._open: dict[bytes, Named] = {}
        self._over: dict[bytes, str] = {}
        self._order: deque[bytes] = deque()
        self._starting = asyncio.Lock()
        self._stop: Callable[[], object] | None = None
        self._url: str | None = None

    @property
    def url(self) -> str | None:
        """Where it serves, without `/v1`; None while it doesn't."""
        return self._url

    async def start(self) -> str:
        """Serve, if it doesn't yet; the URL, without `/v1`.

        Raises:
            ConfigError: The extra `serve` is not installed, or the port can't be had.
        """
        async with self._starting:
            if self._url is None:
                self._url = await self._start()
            return self._url

    async def close(self) -> None:
        """Stop serving and free the port; requests under way are cancelled."""
        async with self._starting:
            stop, self._stop, self._url = self._stop, None, None
            if stop is not None:
                await stop()  # pyright: ignore[reportGeneralTypeIssues]

    def admit(self, answers: Named) -> str:
        """A new key, for which these answer."""
        key = f"sk-{secrets.token_urlsafe(32)}"
        self._open[_digest(key)] = answers
        return key

    def dismiss(self, key: str, why: str) -> None:
        """Let nobody in with a key any more; who tries is told why."""
        digest = _digest(key)
        if self._open.pop(digest, None) is None:
            return
        self._over[digest] = why
        self._order.append(digest)
        if len(self._order) > _REMEMBERED:
            del self._over[self._order.popleft()]

    def open(self, key: str, /) -> Named:
        """Who answers for a key.

        Raises:
            ApiError: 401 if nobody does, 410 if nobody does any more.
        """
        digest = _digest(key)
        if (answers := self._open.get(digest)) is not None:
            return answers
        if (why := self._over.get(digest)) is not None:
            raise ApiError(why, status=410, code="episode_ended")
        raise ApiError(
            "the key is not one of this endpoint's; take the one that the harness is given, for each episode anew",
            status=401,
            code="invalid_api_key",
        )

    async def _start(self) -> str:
        check_served()
        import uvicorn

        from tinker_actors.environments.outside.http import openai_app

        # asyncio sends small packets at once only on sockets that say that they are of TCP; an answer is two of them
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((HOST, self._port))
            listening.listen(512)
        except OSError as error:
            listening.close()
            raise ConfigError(f"port {self._port} of {HOST} can't be had: {error}; 0 takes any that is free") from None
        listening.setblocking(False)
        config = uvicorn.Config(
            openai_app(self),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=int(_ENDING),
        )
        config.load()
        # `serve` would take over the process's signals and look at the time ten times a second
        server = uvicorn.Server(config)
        server.lifespan = config.lifespan_class(config)
        await server.startup(sockets=[listening])

        async def stop() -> None:
            await server.shutdown(sockets=[listening])

        self._stop = stop
        return f"http://{HOST}:{listening.getsockname()[1]}"


def check_served() -> None:
    """Find out whether an endpoint can be served.

    Raises:
        ConfigError: The extra `serve` is not installed.
    """
    for name in ("orjson", "starlette", "uvicorn"):
        if importlib.util.find_spec(name) is None:
            raise ConfigError(f"{name} is not installed; the extra tinker-actors[serve] is needed for an endpoint")


def _digest(key: str) -> bytes:
    """What a key is looked up by: the time that a look-up takes then says nothing of the key."""
    return blake2b(key.encode(), digest_size=16).digest()
