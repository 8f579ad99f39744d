"""The lowest floor between two processes: two pyzmq sockets that know only each other, and no addresses."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import zmq

from benchmarks.actor_peers import measure

SMALL = b"x" * 32
_stack = contextlib.ExitStack()
_peer: list[tuple[Any, int]] = []


def echo(url: str) -> None:
    """The other process."""
    socket = zmq.Context().socket(zmq.PAIR)
    socket.connect(url)
    while True:
        socket.send(socket.recv())


def _client() -> tuple[Any, int]:
    if not _peer:
        url = f"ipc://{Path(_stack.enter_context(tempfile.TemporaryDirectory())) / 'echo'}"
        context = zmq.Context()
        _stack.callback(context.term)
        socket = context.socket(zmq.PAIR)
        _stack.callback(socket.close, 0)
        socket.bind(url)
        process = _stack.enter_context(subprocess.Popen([sys.executable, "-m", __name__, url]))
        _stack.callback(process.kill)
        _peer.append((socket, process.pid))
        _ask(socket)
    return _peer[0]


def _ask(socket: Any) -> None:
    socket.send(SMALL)
    socket.recv()


async def _p50(count: int) -> float:
    socket, _ = _client()
    return measure.p50_blocking(lambda: _ask(socket), count)


async def _pipelined(count: int) -> float:
    socket, _ = _client()
    return measure.window_blocking(lambda: socket.send(SMALL), socket.recv, count)


async def _cpu(count: int) -> float:
    _, pid = _client()
    return await measure.cpu_per_operation(lambda: _pipelined(count), count, [pid])


async def stop() -> None:
    """End the other process."""
    _stack.close()


CASES = {"ask_p50_ipc": _p50, "asks_pipelined_256_ipc": _pipelined, "cpu_per_ask_ipc": _cpu}

if __name__ == "__main__":
    echo(sys.argv[1])
