"""The floor between two processes: pyzmq's blocking sockets, and a process that sends back what it receives.

That process has a ROUTER, as every server of more than one client must, and answers each message by itself. A pair of
sockets that know only each other needs no addresses and is faster still: see `on_pyzmq_pair`.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from benchmarks.actor_peers import measure

SMALL = b"x" * 32  # about an envelope without its arguments
_stack = contextlib.ExitStack()
_context = zmq.Context()
_clients: dict[str, tuple[Any, int]] = {}


def echo(url: str, transport: str, secret: str) -> None:
    """The other process: sends small messages back and acknowledges large ones."""
    socket = zmq.Context().socket(zmq.ROUTER)
    if transport == "tcp_curve":
        socket.curve_server = True
        socket.curve_secretkey = secret.encode()
        socket.curve_publickey = zmq.curve_public(secret.encode())
    socket.bind(url)
    print(socket.last_endpoint.decode(), flush=True)
    while transport == "ipc_large":
        client, _ = socket.recv_multipart(copy=False)
        socket.send_multipart([client, b"ok"])
    while True:
        socket.send_multipart(socket.recv_multipart())


def _client(transport: str) -> tuple[Any, int]:
    """A socket connected to an echoing process over `transport`, and that process's id."""
    if transport not in _clients:
        public, secret = zmq.curve_keypair()
        folder = _stack.enter_context(tempfile.TemporaryDirectory())
        url = f"ipc://{Path(folder) / 'echo'}" if transport.startswith("ipc") else "tcp://127.0.0.1:*"
        command = [sys.executable, "-m", __name__, url, transport, secret.decode()]
        process = _stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        _stack.callback(process.kill)
        assert process.stdout is not None
        socket = _context.socket(zmq.DEALER)
        _stack.callback(socket.close, 0)
        if transport == "tcp_curve":
            socket.curve_serverkey = public
            socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
        socket.connect(process.stdout.readline().strip())
        _clients[transport] = socket, process.pid
        _ask(socket)
    return _clients[transport]


def _ask(socket: Any, data: Any = SMALL, *, copy: bool = True) -> None:
    socket.send(data, copy=copy)
    socket.recv()


async def _p50(count: int) -> float:
    socket, _ = _client("ipc")
    return measure.p50_blocking(lambda: _ask(socket), count)


def _pipelined(transport: str) -> Callable[[int], Awaitable[float]]:
    async def case(count: int) -> float:
        socket, _ = _client(transport)
        return measure.window_blocking(lambda: socket.send(SMALL), socket.recv, count)

    return case


async def _cpu(count: int) -> float:
    _, pid = _client("ipc")
    return await measure.cpu_per_operation(lambda: _pipelined("ipc")(count), count, [pid])


def _one_way(size: int) -> Callable[[int], Awaitable[float]]:
    async def case(count: int) -> float:
        socket, _ = _client("ipc_large")
        data = np.ones(size, np.uint8)
        _ask(socket, data, copy=False)
        return size / (measure.p50_blocking(lambda: _ask(socket, data, copy=False), count) * 1e3)

    return case


async def stop() -> None:
    """End the echoing processes."""
    _stack.close()
    _context.term()


CASES = {
    "ask_p50_ipc": _p50,
    "asks_pipelined_256_ipc": _pipelined("ipc"),
    "cpu_per_ask_ipc": _cpu,
    "oneway_1mib": _one_way(measure.MIB),
    "oneway_64mib": _one_way(64 * measure.MIB),
    "asks_pipelined_256_tcp": _pipelined("tcp"),
    "asks_pipelined_256_tcp_curve": _pipelined("tcp_curve"),
}

if __name__ == "__main__":
    echo(*sys.argv[1:])
