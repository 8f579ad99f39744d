"""The main program of a child node."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from tinker_actors.actors import main_module
from tinker_actors.actors.agent import SYSTEM_MAILBOX, NodeAgent, RemoteDirectory
from tinker_actors.actors.directory import make_cell
from tinker_actors.actors.lifecycle import Lifecycle
from tinker_actors.actors.node import Node
from tinker_actors.actors.pulse import Thresholds
from tinker_actors.actors.ref import Address
from tinker_actors.actors.restart import RestartHistory, RestartPolicy

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Read the configuration from standard input and serve until the parent says to leave, or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    _die_with_parent()
    lifeline = os.dup(0)
    os.set_inheritable(lifeline, False)
    devnull = os.open(os.devnull, os.O_RDONLY)
    os.dup2(devnull, 0)
    os.close(devnull)
    config = json.loads(_read_line(lifeline))
    if os.getppid() != config["parent"]:
        os._exit(1)
    sys.path[:] = config["path"]
    sys.argv[:] = config["argv"]
    main_module.adopt(main_module.MainScript(module=config["main_module"], path=config["main_path"]))
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    lifetime = Lifetime()
    threading.Thread(target=lifetime.watch, args=(lifeline,), daemon=True, name="lifeline").start()
    with asyncio.Runner(loop_factory=loop_factory(config["loop"])) as runner:
        runner.run(_serve(config, lifetime))


class Lifetime:
    """Ends the process with its parent: at once, or in order if the parent said before that it may leave.

    The parent then writes to the pipe as well as closing it: a process that it has forked may still hold it open.
    """

    def __init__(self) -> None:
        self._leaving = False
        self._stop: Callable[[], None] | None = None

    def leave(self) -> None:
        """What the parent writes, and the end of its pipe, is now an order to stop."""
        self._leaving = True

    def on_leave(self, stop: Callable[[], None]) -> None:
        """What ends the event loop; called from another thread."""
        self._stop = stop

    def watch(self, lifeline: int) -> None:
        """Block until the parent closes the pipe, or writes to it once this may leave."""
        while os.read(lifeline, 4096) and not self._leaving:
            pass
        if self._leaving and self._stop is not None:
            self._stop()
            return
        os.killpg(0, signal.SIGKILL)


async def _serve(config: dict[str, Any], lifetime: Lifetime) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def stop_from_thread() -> None:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(stop.set)

    lifetime.on_leave(stop_from_thread)
    index: int = config["index"]
    mesh: str = config["mesh"]
    node = Node(
        mesh=mesh,
        index=index,
        incarnation=config["incarnation"],
        count=config["count"],
        max_message=config["max_message"],
        shared_memory=config["shared_memory"],
        busy_poll=config["busy_poll"],
        thresholds=Thresholds(**config["thresholds"]),
    )
    node.exchange.listen(config["url"])
    if config["network"] is not None:
        _open_network(node, **config["network"])
    directory = node.ref(system_address(mesh, 0))
    registry = RemoteDirectory(node, directory)
    node.supervisor = registry
    cell = make_cell(node, registry, NodeAgent, system_address(mesh, index))
    history = RestartHistory(RestartPolicy.never())
    await Lifecycle(node, cell, (node, registry, lifetime.leave), {}, history).start()
    node.exchange.connect(0, 1, config["parent_url"])
    node.exchange.open_peer(0)
    gc.freeze()  # what is there now stays; the collector need not look at it again
    await stop.wait()
    node.close()


def _open_network(node: Node, host: str, ping: float, keys: dict[str, Any] | None) -> None:
    from tinker_actors.actors.endpoint import Endpoint
    from tinker_actors.actors.keys import Keys
    from tinker_actors.actors.network import Network

    network = Network(node.exchange, None if keys is None else Keys.from_config(keys), ping)
    node.exchange.network = network
    network.listen(Endpoint(host, 0))


def system_address(mesh: str, index: int) -> Address:
    """The address of node `index`'s agent, or of the directory for node 0."""
    kind = "NodeAgent" if index else "Directory"
    return Address(mesh=mesh, id=index, node=index, name=f"node-{index}", kind=kind, mailbox=SYSTEM_MAILBOX)


def _die_with_parent() -> None:
    """Ask the kernel (Linux) to kill this process when its parent ends, however it ends."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _read_line(descriptor: int) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(descriptor, 65536)
        if not part:
            os._exit(1)
        line += part
    return line


def loop_factory(name: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes the event loop: for "auto" uvloop, where it is installed; None is asyncio's own."""
    if name == "asyncio":
        return None
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


if __name__ == "__main__":
    main()
