"""Nodes in a Ray cluster: tasks of it, each in a worker process of its own, that join the mesh over tcp."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
from collections.abc import Awaitable, Sequence
from typing import Any

from tinker_actors.actors.endpoint import Endpoint
from tinker_actors.actors.errors import HandshakeError, JoinError, SpawnError
from tinker_actors.actors.keys import Keys, passing_pair
from tinker_actors.actors.worker import loop_factory
from tinker_actors.errors import ConfigError

logger = logging.getLogger(__name__)

LEAVE = 5.0  # seconds for the tasks to end in order once the mesh has
AGAIN = 0.5  # seconds between tries to join in the place of a former self that is not yet known to be gone


class RayPlacement:
    """Where a mesh's other nodes start: `Mesh(nodes=5, placement=RayPlacement(num_gpus=1, imports=["app"]))`.

    Each is a Ray task, with the resources that are asked for. Links to it are encrypted with key pairs that are made
    for this mesh alone and reach the workers as arguments of their tasks. A node whose worker dies is started again by
    Ray and takes its former self's place; its restartable actors are restarted there.

    Args:
        imports: Modules whose actors may be spawned there, by prefix; None: those that a worker has imported already.
            They must be installed in the cluster, as this package must.
        address: The cluster's address, see `ray.init`; None: where `RAY_ADDRESS` says, else a cluster on this host for
            as long as the mesh lasts. Neither counts where the program has called `ray.init` itself.
        retries: How often a node whose worker died is started again.
        options: Ray's options of the tasks: `num_cpus`, `num_gpus`, `resources`, `runtime_env`, `scheduling_strategy`.

    Raises:
        ConfigError: Ray isn't installed.
    """

    def __init__(
        self, *, imports: Sequence[str] | None = None, address: str | None = None, retries: int = 3, **options: Any
    ) -> None:
        try:
            self._ray: Any = importlib.import_module("ray")
        except ImportError:
            raise ConfigError("a RayPlacement needs the package ray: pip install 'tinker-actors[ray]'") from None
        self._imports = None if imports is None else list(imports)
        self._address = address
        self._options = {"num_cpus": 1, **options, "max_retries": retries}
        self._keys: Keys | None = None
        self._has_begun_ray = False
        self._nodes: dict[str, tuple[Any, asyncio.Future[None]]] = {}
        self._closing = False

    async def open(self) -> tuple[Endpoint, Keys]:
        """See `Placement`."""
        if self._keys is not None:
            raise ConfigError("this RayPlacement has served a mesh already; make another one")
        own, self._keys = passing_pair()
        ray = self._ray
        if not ray.is_initialized():
            try:
                await asyncio.to_thread(ray.init, address=self._address, log_to_driver=False)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise SpawnError(f"no Ray cluster at {self._address or 'RAY_ADDRESS or here'}: {error}") from error
            self._has_begun_ray = True
        return Endpoint(ray.util.get_node_ip_address(), 0), own

    async def start(self, url: str, count: int, *, patience: float, joined: Awaitable[None]) -> None:
        """See `Placement`."""
        assert self._keys is not None
        waiting = asyncio.ensure_future(joined)
        try:
            self._submit(url, self._keys, count, patience)
            await asyncio.wait(
                [waiting, *(ended for _, ended in self._nodes.values())], return_when=asyncio.FIRST_COMPLETED
            )
            for name, (_, ended) in self._nodes.items():
                if ended.done() and not waiting.done():
                    error = ended.exception()
                    raise SpawnError(f"node {name} ended while it started: {_told(error)}") from error
            await waiting
        finally:
            waiting.cancel()

    def _submit(self, url: str, keys: Keys, count: int, patience: float) -> None:
        task = self._ray.remote(**self._options)(serve_node)
        for number in range(1, count + 1):
            name = f"ray-{number}"
            node = task.options(name=name).remote(url, keys.as_config(), name, self._imports, patience)
            ended: asyncio.Future[None] = asyncio.wrap_future(node.future())
            ended.add_done_callback(lambda ended, name=name: self._ended(name, ended))
            self._nodes[name] = node, ended

    async def close(self) -> None:
        """See `Placement`."""
        self._closing = True
        if living := [ended for _, ended in self._nodes.values() if not ended.done()]:
            await asyncio.wait(living, timeout=LEAVE)
        for node, ended in self._nodes.values():
            if not ended.done():
                self._ray.cancel(node, force=True)
        if self._has_begun_ray:
            await asyncio.to_thread(self._ray.shutdown)

    def _ended(self, name: str, ended: asyncio.Future[None]) -> None:
        if not ended.cancelled() and (error := ended.exception()) is not None and not self._closing:
            logger.error("node %s ended: %s", name, _told(error))


def _told(error: BaseException | None) -> str:
    """Why a task ended, without Ray's account of where."""
    cause = getattr(error, "cause", None) or error
    return "without an error" if cause is None else f"{type(cause).__name__}: {cause}"


def serve_node(url: str, keys: dict[str, Any], name: str, imports: Sequence[str] | None, patience: float) -> None:
    """Be a node of a mesh until it ends; what each task does.

    Raises:
        JoinError: The mesh can't be joined.
        NodeDiedError: It could not be reached for `patience` seconds.
    """
    with asyncio.Runner(loop_factory=loop_factory("auto")) as runner:
        runner.run(be_a_node(url, Keys.from_config(keys), name, imports, patience))


async def be_a_node(url: str, keys: Keys | None, name: str, imports: Sequence[str] | None, patience: float) -> None:
    """`serve_node` on the running loop."""
    from tinker_actors.actors.mesh import Mesh

    async with contextlib.AsyncExitStack() as stack:
        for tries_left in reversed(range(max(1, int(patience / AGAIN)))):
            joining = Mesh.join(url, keys=keys, name=name, imports=imports, patience=patience)
            try:
                mesh = await stack.enter_async_context(joining)
            except JoinError as error:
                if isinstance(error, HandshakeError) or not tries_left:
                    raise
                await asyncio.sleep(AGAIN)
            else:
                await mesh.wait_closed()
                return
