"""From a configuration to a running gateway, for `tinker-actors serve` and for a service of one's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tinker_actors.gateway.admission import Admission, refuse_off_host
from tinker_actors.gateway.config import ServeConfig
from tinker_actors.gateway.gateway import Gateway
from tinker_actors.gateway.keys import FILE_NAME, KeyStore
from tinker_actors.gateway.runtime import Runtime
from tinker_actors.scheduler.service import Scheduler


@asynccontextmanager
async def open_gateway(config: ServeConfig) -> AsyncIterator[Gateway]:
    """Start what a gateway serves, on the running event loop; end it when the block is left.

    Running jobs save their present step then and are queued; the next gateway of the same root goes on with them. It
    takes over neither signals nor the event loop.

    Raises:
        ConfigError: Something that the configuration names can't be had.
        JobError: Another gateway has the root.
    """
    async with AsyncExitStack() as stack:
        keys = stack.enter_context(KeyStore(Path(config.root) / FILE_NAME))
        refuse_off_host(config.host, keys)
        runtime = await stack.enter_async_context(Runtime(config.root, config.served(), in_process=config.in_process))
        capacity = config.capacity.resources()
        scheduler = await runtime.mesh.spawn(
            Scheduler,
            str(Path(config.root) / "scheduler"),
            capacity,
            rules=config.rules.rules(capacity),
            retry=config.jobs.retry(),
            grace=config.jobs.grace,
            save_grace=config.jobs.save_grace,
            name="scheduler",
            node=0,
        )
        stack.push_async_callback(scheduler.drain)
        yield await stack.enter_async_context(
            Gateway(runtime=runtime, scheduler=scheduler, admit=Admission(keys), limits=config.limits)
        )
