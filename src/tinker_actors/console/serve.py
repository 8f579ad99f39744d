"""`tinker-actors serve`: the gateway as a program of its own."""

from __future__ import annotations

import argparse
import asyncio
import gc
import signal
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from tinker_actors.console.extras import check_extra
from tinker_actors.console.signals import leave_at_once, until_done_or_signalled
from tinker_actors.errors import ConfigError
from tinker_actors.scheduler.states import JobState


def serve_command(options: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM.

    Returns:
        The exit code: 0 once all has ended cleanly.

    Raises:
        ConfigError: The configuration can't work, or the port can't be had.
        JobError: Another gateway has the root.
    """
    check_extra("serve", "fastapi", "orjson", "uvicorn", "starlette")
    from tinker_actors.gateway.config import ServeConfig, load_serve_config
    from tinker_actors.gateway.observing.logs import configure_logging

    asked = {name: getattr(options, name) for name in ("host", "port", "root", "log_json")}
    config: ServeConfig = load_serve_config(
        Path(options.config) if options.config else None,
        models=options.model,
        settings={name: value for name, value in asked.items() if value is not None},
    )
    root = Path(config.root)
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)  # its files are of many tenants
        configure_logging(as_json=config.log_json, path=root / "serve.log")
    except OSError as error:
        raise ConfigError(f"root is {config.root!r}, where nothing can be kept: {error.strerror}") from None
    console = Console()
    # not closed by `run`: closing waits for compute threads, which can't be cancelled
    runner = asyncio.Runner()
    try:
        runner.run(until_done_or_signalled(_serve(config, console), told=partial(_tell, console)))
    except BaseException:  # an interrupt too ends the loop properly
        runner.close()
        raise
    leave_at_once(0)


async def _serve(config: Any, console: Console) -> None:
    from tinker_actors.gateway.gateway import create_app
    from tinker_actors.gateway.listening import listening, serving
    from tinker_actors.gateway.opening import open_gateway

    with listening(config.host, config.port) as listener:
        _print(console, f"starting, with what it keeps in {config.root}")
        async with open_gateway(config) as gateway:
            try:
                async with serving(create_app(gateway), listener) as url:
                    names = ", ".join(config.models) or "none"
                    _print(console, f"serving on {url}")
                    _print(console, f"base models: {names}")
                    _print(console, "Ctrl-C ends it; running jobs save their present step first")
                    gc.collect()
                    gc.freeze()  # looking through all that was loaded takes the collector a third of a second
                    await asyncio.Event().wait()
            finally:
                jobs = await gateway.scheduler.jobs((JobState.STARTING, JobState.RUNNING)) if gateway.scheduler else []
                if jobs:
                    running = "1 running job" if len(jobs) == 1 else f"{len(jobs)} running jobs"
                    _print(console, f"waiting for {running} to save; Ctrl-C again ends at once")


def _tell(console: Console, number: int) -> None:
    _print(console, f"ending by {signal.Signals(number).name}")


def _print(console: Console, line: str) -> None:
    console.print(Text(line), soft_wrap=True)
