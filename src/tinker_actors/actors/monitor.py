"""What becomes of one socket's connections, as ZeroMQ's own threads see it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

FAILED = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
LINK = FAILED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


class Monitor:
    """Calls `on_event(event, value)` on the loop for each of `events` of `socket`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        socket: zmq.Socket[bytes],
        events: int,
        on_event: Callable[[int, int], None],
    ) -> None:
        self._loop = loop
        self._on_event = on_event
        self._monitored = socket
        self._socket: zmq.Socket[Any] = socket.get_monitor_socket(events)
        self._fd = int(self._socket.getsockopt(zmq.FD))
        loop.add_reader(self._fd, self._drain)
        loop.call_soon(self._drain)  # what came before the reader was registered makes no edge

    def close(self) -> None:
        """Stop; the monitored socket must still be open."""
        if not self._socket.closed:
            self._loop.remove_reader(self._fd)
            with contextlib.suppress(zmq.ZMQError):
                self._monitored.disable_monitor()
            self._socket.close(0)

    def _drain(self) -> None:
        try:
            while not self._socket.closed:
                message = parse_monitor_message(self._socket.recv_multipart(zmq.DONTWAIT))
                self._on_event(int(message["event"]), int(message["value"]))
        except zmq.Again:
            return
