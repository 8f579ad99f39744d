"""`tinker-actors keys mesh` and `tinker-actors node`: meshes over several hosts."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import logging
import os
import signal
import sys

from rich.console import Console
from rich.text import Text

from tinker_actors.actors.errors import JoinError, ListenError, NodeDiedError
from tinker_actors.actors.joined import JoinedMesh
from tinker_actors.actors.keys import ALLOWED, SUFFIX, Keys, generate
from tinker_actors.actors.mesh import Mesh
from tinker_actors.actors.worker import loop_factory
from tinker_actors.errors import ConfigError


def make_keys(folder: str, names: list[str]) -> int:
    """Make a key pair for each host and print the public keys."""
    console = Console()
    for name, public in generate(folder, names).items():
        console.print(Text(f"{name} {public}"), soft_wrap=True)
    hint = f"Each host needs its own {folder}/NAME{SUFFIX} and {folder}/{ALLOWED}, and nobody else's secret."
    Console(stderr=True).print(Text(hint), soft_wrap=True)
    return 0


def run_node(options: argparse.Namespace) -> int:
    """Join a mesh and serve its actors until it ends, or a signal says to leave."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    for module in options.imports:
        try:
            importlib.import_module(module)
        except Exception as error:  # user code: whatever a module raises, the node can't serve its actors
            why = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise ConfigError(f"--import {module!r} can't be imported: {why}") from error
    keys = None if options.keys is None else Keys.load(options.keys, server=options.server)
    mesh = Mesh.join(
        options.join,
        keys=keys,
        name=options.name,
        listen=options.listen,
        imports=options.imports,
        timeout=options.timeout,
        patience=options.patience,
    )
    with asyncio.Runner(loop_factory=loop_factory("auto")) as runner:
        return runner.run(_serve(mesh))


async def _serve(joining: JoinedMesh) -> int:
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[int] = loop.create_future()

    def stop(code: int) -> None:
        if not stopped.done():
            stopped.set_result(code)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, 128 + number)
    entering = loop.create_task(joining.__aenter__())
    try:
        await asyncio.wait([entering, stopped], return_when=asyncio.FIRST_COMPLETED)
        if not entering.done():
            entering.cancel()
            await asyncio.wait([entering])
        if entering.cancelled():  # nothing of it is left
            return stopped.result()
        async with contextlib.AsyncExitStack() as stack:
            mesh = await entering
            stack.push_async_exit(joining)
            Console(stderr=True).print(Text(f"node {mesh.node} of the mesh"), soft_wrap=True)
            ended = loop.create_task(mesh.wait_closed())
            await asyncio.wait([ended, stopped], return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                await ended
                return 0
            ended.cancel()
        return stopped.result()
    except (JoinError, ListenError, NodeDiedError) as error:
        Console(stderr=True).print(Text(f"tinker-actors: {error}"), soft_wrap=True)
        return 1
