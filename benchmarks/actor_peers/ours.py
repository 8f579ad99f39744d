"""tinker_actors, with deadlines, supervision and mailbox bounds on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.actor_peers import measure
from benchmarks.actor_peers.actors_of_ours import Counter
from tinker_actors.actors import Mesh, NodeDiedError, RestartPolicy
from tinker_actors.actors.keys import Keys, generate

DEADLINE = 60.0  # seconds: every ask carries one
_stack = contextlib.AsyncExitStack()
_meshes: dict[str, Any] = {}


async def stop() -> None:
    """Close every mesh."""
    await _stack.aclose()


async def _mesh(kind: str) -> Any:
    if kind not in _meshes:
        if kind.startswith("tcp"):
            _meshes[kind] = await _joined_mesh(curve=kind == "tcp_curve")
        else:
            _meshes[kind] = await _stack.enter_async_context(Mesh(nodes=1 if kind == "local" else 2))
    return _meshes[kind]


async def _joined_mesh(*, curve: bool) -> Any:
    """A mesh that another process has joined over tcp, as from another host; actors go there."""
    own, other = None, ""
    if curve:
        folder = Path(_stack.enter_context(tempfile.TemporaryDirectory()))
        generate(folder, ["head", "other"])
        own, other = Keys.load(folder / "head.secret"), str(folder / "other.secret")
    others: list[asyncio.subprocess.Process] = []
    _stack.callback(lambda: [process.stdin.close() for process in others if process.stdin])  # after the mesh has ended
    mesh = await _stack.enter_async_context(Mesh(listen="tcp://127.0.0.1:0", keys=own))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.actor_peers.joined", mesh.url or "", other),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    others.append(process)
    assert process.stdout is not None
    await process.stdout.readline()
    return mesh


async def _counter(kind: str) -> Any:
    mesh = await _mesh(kind)
    key = f"{kind} counter"
    if key not in _meshes:
        counter = await mesh.spawn(Counter, restart=RestartPolicy.on_failure())
        _meshes[key] = counter.options(timeout=DEADLINE)
    return _meshes[key]


def _p50(kind: str) -> Callable[[int], Awaitable[float]]:
    async def case(count: int) -> float:
        counter = await _counter(kind)
        return await measure.p50(lambda: counter.add(1), count)

    return case


def _pipelined(kind: str) -> Callable[[int], Awaitable[float]]:
    async def case(count: int) -> float:
        counter = await _counter(kind)
        return await measure.pipelined(lambda: counter.add(1), count)

    return case


def _cpu(kind: str) -> Callable[[int], Awaitable[float]]:
    async def case(count: int) -> float:
        counter = await _counter(kind)
        pids = (await _mesh(kind)).pids.values()
        return await measure.cpu_per_operation(lambda: measure.pipelined(lambda: counter.add(1), count), count, pids)

    return case


def _one_way(size: int, *, in_arena: bool = False) -> Callable[[int], Awaitable[float]]:
    async def case(count: int) -> float:
        counter = await _counter("ipc")
        data = np.ones(size, np.uint8)
        if in_arena:
            data = (await _mesh("ipc")).put(data)
        return await measure.one_way(lambda: counter.take(data), size, count)

    return case


def _barrier(nodes: int) -> Callable[[int], Awaitable[float]]:
    async def case(count: int) -> float:
        """A thousand actors asked and awaited as a group, in ms; with more than one node all are in child processes."""
        async with Mesh(nodes=nodes) as mesh:
            policy = RestartPolicy.on_failure()
            group = mesh.group([await mesh.spawn(Counter, restart=policy) for _ in range(1000)])
            group = group.options(timeout=DEADLINE)
            return await measure.p50(lambda: group.ask.add(1), count) / 1e3

    return case


async def _spawn_time(count: int) -> float:
    async with Mesh() as mesh:
        policy = RestartPolicy.on_failure()
        return await measure.spawn_time(lambda: mesh.spawn(Counter, restart=policy), count)


async def _spawn_memory(count: int) -> float:
    async with Mesh() as mesh:
        policy = RestartPolicy.on_failure()
        return await measure.spawn_memory(lambda: mesh.spawn(Counter, restart=policy), count)


async def _kill_to_error(count: int) -> float:
    """From SIGKILL of the peer to the failure of the last of 256 asks that wait for it; the worst of `count`."""
    worst = 0.0
    for _ in range(count):
        async with Mesh(nodes=2) as mesh:
            logging.getLogger("tinker_actors").setLevel(logging.CRITICAL)  # the deaths are meant
            counters = [await mesh.spawn(Counter) for _ in range(measure.WORKERS)]
            asks = [asyncio.ensure_future(counter.hang()) for counter in counters]
            await (await mesh.spawn(Counter)).add(1)
            start = time.perf_counter()
            os.kill(mesh.pids[1], signal.SIGKILL)
            ends = await asyncio.gather(*asks, return_exceptions=True)
            worst = max(worst, time.perf_counter() - start)
            if not all(isinstance(end, NodeDiedError) for end in ends):
                raise RuntimeError(f"an ask of a killed process ended with {ends}")
    return worst * 1e3


CASES = {
    "ask_p50_ipc": _p50("ipc"),
    "asks_pipelined_256_ipc": _pipelined("ipc"),
    "cpu_per_ask_ipc": _cpu("ipc"),
    "ask_p50_local": _p50("local"),
    "asks_pipelined_256_local": _pipelined("local"),
    "cpu_per_ask_local": _cpu("local"),
    "oneway_1mib": _one_way(measure.MIB),
    "oneway_64mib": _one_way(64 * measure.MIB),
    "oneway_64mib_in_arena": _one_way(64 * measure.MIB, in_arena=True),
    "barrier_1000_local": _barrier(1),
    "barrier_1000_ipc": _barrier(5),
    "asks_pipelined_256_tcp": _pipelined("tcp"),
    "asks_pipelined_256_tcp_curve": _pipelined("tcp_curve"),
    "spawn_10000_local": _spawn_time,
    "spawn_10000_local_memory": _spawn_memory,
    "kill_to_error_ipc": _kill_to_error,
}
