"""How a node asks a mesh on another host to let it in."""

from __future__ import annotations

import asyncio
import logging
import secrets
from dataclasses import dataclass
from typing import Any

import zmq

from tinker_actors.actors import packing
from tinker_actors.actors.endpoint import Endpoint
from tinker_actors.actors.errors import CodecError, HandshakeError, JoinError
from tinker_actors.actors.guests import VERSION
from tinker_actors.actors.keys import Keys
from tinker_actors.actors.monitor import FAILED, LINK, Monitor
from tinker_actors.actors.network import JOINING
from tinker_actors.actors.secure import Security

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Welcome:
    """What a node that is let in needs to know."""

    mesh: str
    index: int
    incarnation: int
    max_message: int  # bytes
    ping: float  # seconds
    ask_cycle: float | None  # seconds


class Request:
    """One request to join. Ends with `answer`, or with an error as soon as it is known that none can come."""

    def __init__(self, endpoint: Endpoint, keys: Keys | None, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._endpoint = endpoint
        self._keys = keys
        self._name = name
        self.answer: asyncio.Future[Welcome] = self._loop.create_future()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._security = Security(self._context, keys, is_server=False)
        socket = self._socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.setsockopt(zmq.MAXMSGSIZE, 1 << 16)
        socket.setsockopt(zmq.ROUTING_ID, JOINING + secrets.token_hex(8).encode())
        self._security.configure_client(socket, None, 1.0, is_ipv6=endpoint.is_ipv6)
        self._monitor = Monitor(self._loop, socket, LINK, self._event)
        socket.connect(endpoint.url)
        self._fd = int(socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._fd, self._read)

    def close(self) -> None:
        """Close its connection."""
        self._monitor.close()
        self._loop.remove_reader(self._fd)
        self._context.destroy(linger=0)
        self.answer.cancel()

    def _event(self, event: int, value: int) -> None:
        if self.answer.done():
            return
        where = self._endpoint.url
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            key = None if self._keys is None else self._keys.public
            self._socket.send(packing.pack([VERSION, self._name, key]), zmq.DONTWAIT)
            self._loop.call_soon(self._read)
        elif event & FAILED:
            self.answer.set_exception(HandshakeError(f"can't join {where}: {self._security.explain(event, value)}"))

    def _read(self) -> None:
        try:
            while not self._socket.closed:
                data = self._socket.recv(zmq.DONTWAIT)
                if not self.answer.done():
                    self._answered(data)
        except zmq.Again:
            return

    def _answered(self, data: bytes) -> None:
        where = self._endpoint.url
        try:
            good, what = packing.unpack(data, _no_extension)
            if not good:
                self.answer.set_exception(JoinError(f"{where} refused this node: {what}"))
                return
            mesh, index, incarnation, size, ping, grace = what
            self.answer.set_result(
                Welcome(
                    mesh=str(mesh), index=index, incarnation=incarnation, max_message=size, ping=ping, ask_cycle=grace
                )
            )
        except Exception as error:  # bytes from elsewhere
            self.answer.set_exception(JoinError(f"{where} is no mesh: {type(error).__name__}: {error}"))


async def ask_to_join(endpoint: Endpoint, keys: Keys | None, name: str, timeout: float) -> Welcome:
    """Ask until there is an answer, for at most `timeout` seconds.

    Raises:
        HandshakeError: the keys don't fit.
        JoinError: the mesh refused, or nobody answered.
    """
    request = Request(endpoint, keys, name)
    try:
        async with asyncio.timeout(timeout):
            return await request.answer
    except TimeoutError:
        raise JoinError(f"nobody answered at {endpoint.url} for {timeout:g} s") from None
    finally:
        request.close()


def _no_extension(code: int, data: bytes) -> Any:
    raise CodecError(f"an extension of type {code} in an answer")
