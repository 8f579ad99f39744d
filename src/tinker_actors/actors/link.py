"""Sockets: one ROUTER for what comes in, one DEALER to each peer for what goes out.

Each socket works in one direction only (but for the answer to a node that asks to join). A send can then never eat the
edge-triggered readiness of a receive, and the ROUTER, which drops what it can't route without a word, never sends. The
DEALER is IMMEDIATE, so nothing is queued for a peer that is not there; its high-water mark is off, because the senders'
windows bound what is outstanding.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

import zmq
from zmq.backend import zmq_poll

from tinker_actors.actors import envelope
from tinker_actors.actors.codec import Frame
from tinker_actors.actors.envelope import BATCH_BYTES, BATCH_ENVELOPES
from tinker_actors.actors.errors import ListenError
from tinker_actors.actors.late_data import COPIES_LAST

logger = logging.getLogger(__name__)

# As plain integers: the library's enums are slow to combine and to convert.
NOW = int(zmq.DONTWAIT)
MORE = int(zmq.DONTWAIT | zmq.SNDMORE)
IN = int(zmq.POLLIN)
OUT = int(zmq.POLLOUT)

DRAIN_BUDGET = 32  # batches read before the loop's other work gets its turn
DRAIN_FRAMES = 4  # batches with frames, likewise
UNCOPIED = 256 * 1024  # bytes: batches of this size and above are handed to ZeroMQ without a copy
SLACK = 1 << 20  # bytes that a frame may exceed the message limit by: the batch around it


class Inbound:
    """The bound ROUTER; gives (sender's identity, batch, frames) to `receive`."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        loop: asyncio.AbstractEventLoop,
        url: str,
        max_message: int,
        receive: Callable[[bytes, bytes, Sequence[Frame]], None],
        configure: Callable[[zmq.Socket[bytes]], None] | None = None,
    ) -> None:
        self._loop = loop
        self._receive = receive
        socket = self._socket = context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, max_message + SLACK)
        if configure is not None:
            configure(socket)
        try:
            socket.bind(url)
        except zmq.ZMQError as error:
            socket.close(0)
            raise ListenError(error.errno, f"can't listen on {url}: {error.strerror}") from None
        self.url = cast(bytes, socket.getsockopt(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()
        self._closed = False
        self._items = [(socket, IN)]
        self._fd = int(socket.getsockopt(zmq.FD))
        loop.add_reader(self._fd, self._drain)
        loop.call_soon(self._drain)  # what came before the reader was registered makes no edge

    def reply(self, identity: bytes, data: bytes) -> bool:
        """Send straight back to a sender, on the connection that it came by; False if that is gone.

        The socket must be ROUTER_MANDATORY, or what can't be sent would be dropped without a word.
        """
        try:
            self._socket.send_multipart([identity, data], NOW)
        except zmq.ZMQError:
            return False
        finally:
            self._loop.call_soon(self._drain)  # a send may have eaten the edge of a receive
        return True

    def close(self) -> None:
        """Stop reading."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._fd)
            self._socket.close(0)

    def read(self) -> None:
        """Give what has come to `receive` without waiting for the loop to notice."""
        if not self._closed and zmq_poll(self._items, 0):
            self._drain()

    def _drain(self) -> None:
        socket = self._socket
        if self._closed:
            return
        receive = socket.recv
        try:
            large = 0
            for _ in range(DRAIN_BUDGET):
                identity = receive(NOW)
                first = receive(NOW, False)  # it knows whether more follows; to ask the socket costs more
                frames: Sequence[Any] = ()
                if first.more:
                    frames = [frame.buffer for frame in socket.recv_multipart(NOW, copy=False)]
                self._receive(identity, first.bytes, frames)
                # The exception that says that there is no more costs five times as much as this, EVENTS twice as much.
                if self._closed or not zmq_poll(self._items, 0):
                    return
                if frames:
                    large += 1
                    if large == DRAIN_FRAMES:
                        break
        except zmq.Again:
            return
        self._loop.call_soon(self._drain)


class Outbound:
    """The DEALER to one incarnation of a peer. All envelopes of one loop turn leave as one message.

    Raises:
        OSError: there is no descriptor left for it.

    Attributes:
        scheduled: whether the turn's `flush` is to come.
        copies: called when the next batch leaves: they copy its data to where the receiver finds it. What copies much
            pushes what is needed next out of the processor's cache, so all else is done by then.
        leads: whether short frames are descriptors.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        loop: asyncio.AbstractEventLoop,
        url: str,
        identity: bytes,
        schedule: Callable[[Outbound], None],
        configure: Callable[[zmq.Socket[bytes]], None] | None = None,
    ) -> None:
        self._loop = loop
        self._schedule = schedule
        self._envelopes: list[bytes] = []
        self._size = 0
        self._frames: list[Frame] = []
        self._counts: list[tuple[int, int]] = []
        self.copies: list[Callable[[], None]] = []
        self._blocked: deque[tuple[bytes, list[Frame]]] = deque()
        self.scheduled = False
        self.leads = True
        self._closed = False
        try:
            socket = self._socket = context.socket(zmq.DEALER)
        except zmq.ZMQError as error:
            raise OSError(error.errno, f"can't connect to {url}: {error.strerror}") from None
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.ROUTING_ID, identity)
        if configure is not None:
            configure(socket)
        socket.connect(url)
        self._hand_over = super(zmq.Socket, socket).send  # without what the wrapper has for the sockets' draft options
        self._fd = int(socket.getsockopt(zmq.FD))

    def put(self, data: bytes, frames: Sequence[Frame] = (), *, now: bool = False) -> None:
        """Add an encoded envelope to this turn's batch; `now` sends it at once if it is the first."""
        envelopes = self._envelopes
        envelopes.append(data)
        size = self._size = self._size + len(data)
        if frames:
            self._counts.append((len(envelopes) - 1, len(frames)))
            self._frames.extend(frames)
        count = len(envelopes)
        if (now and count == 1) or count >= BATCH_ENVELOPES or size >= BATCH_BYTES:
            self.flush()
        elif not self.scheduled:
            self.scheduled = True
            self._schedule(self)

    def flush(self) -> None:
        """Send the batch now."""
        self.scheduled = False
        if not self._envelopes or self._closed:
            return
        envelopes, frames, counts = self._envelopes, self._frames, self._counts
        self._envelopes, self._size = [], 0
        if frames:
            self._frames, self._counts = [], []
            # As parts of their own, descriptors would cost more than all else about them.
            if not self.leads or not envelope.may_lead(frames):
                data = envelope.join(envelopes, counts)
            elif len(envelopes) == len(frames) == 1:
                data, frames = envelope.lead_one(frames[0], envelopes[0]), []
            else:
                data, frames = envelope.lead(frames, envelope.join(envelopes, counts)), []
        else:
            data = envelope.join(envelopes, ())
        copies = self.copies
        if copies:
            self.copies = []
        try:
            if copies and not COPIES_LAST:
                _call_each(copies)
        finally:  # a copy that failed is marked so: the message still says it to whoever waits
            if self._blocked or not self._send(data, frames):
                self._blocked.append((data, frames))
                if len(self._blocked) == 1:
                    self._loop.add_reader(self._fd, self._unblock)
                    self._loop.call_soon(self._unblock)
        if copies and COPIES_LAST:
            _call_each(copies)

    @property
    def is_idle(self) -> bool:
        """Whether everything put has been handed to ZeroMQ."""
        return not self._envelopes and not self._blocked

    @property
    def waiting(self) -> tuple[int, int]:
        """Batches and bytes that ZeroMQ has not taken yet."""
        blocked = sum(len(data) + sum(frame.nbytes for frame in frames) for data, frames in self._blocked)
        own = self._size + sum(frame.nbytes for frame in self._frames)
        return len(self._blocked) + len(self._envelopes), blocked + own

    def drop(self) -> None:
        """Forget what was not sent."""
        if self._blocked:
            self._loop.remove_reader(self._fd)
            self._blocked.clear()
        self._envelopes, self._size = [], 0
        self._frames, self._counts, self.copies = [], [], []

    def close(self, linger: int = 0) -> None:
        """Drop what ZeroMQ has not taken yet; what it has may still leave for `linger` milliseconds."""
        if not self._closed:
            self._closed = True
            self.drop()
            self._socket.close(linger)

    def _send(self, data: bytes, frames: list[Frame]) -> bool:
        socket = self._socket
        try:
            if len(data) >= UNCOPIED:
                _send_uncopied(socket, data, MORE if frames else NOW)
            else:
                self._hand_over(data, MORE if frames else NOW)
        except zmq.Again:
            return False
        # Once its first part is taken, ZeroMQ takes the whole message.
        for index, frame in enumerate(frames, 1):
            _send_uncopied(socket, frame, MORE if index < len(frames) else NOW)
        return True

    def _unblock(self) -> None:
        if self._closed or not self._blocked:
            return
        while self._blocked and int(self._socket.getsockopt(zmq.EVENTS)) & OUT:
            data, frames = self._blocked[0]
            if not self._send(data, frames):
                return
            self._blocked.popleft()
        if not self._blocked:
            self._loop.remove_reader(self._fd)


def _send_uncopied(socket: zmq.Socket[bytes], data: Frame | bytes, flags: int) -> None:
    try:
        socket.send(data, flags, copy=False)
    except zmq.Again:
        raise
    except (OSError, zmq.ZMQError):  # there is no descriptor left for what would free the data afterwards
        socket.send(data, flags)


def _call_each(copies: list[Callable[[], None]]) -> None:
    """Call all of them, whatever one raises: somebody waits for each."""
    if len(copies) == 1:
        copies[0]()
        return
    with contextlib.ExitStack() as stack:
        for copy in reversed(copies):
            stack.callback(copy)
