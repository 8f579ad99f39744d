"""Asks that miss their deadline while they are being served, however slow the machine is."""

from collections.abc import Awaitable, Callable
from typing import Any

from zoo import Log

from tinker_actors.actors import DeadlineExceeded


async def ask_late(ask: Callable[[float], Awaitable[Any]], log: Log, begins: str = "hold begins") -> DeadlineExceeded:
    """Ask with a short deadline; again, with one four times as long, until `log` says that it has begun to be served.

    Args:
        ask: asks with a deadline, in seconds, that passes before it is answered.
        log: what remembers that it has begun.
        begins: as what.

    Returns:
        What it ended with.
    """
    seconds = 0.05
    while True:
        try:
            await ask(seconds)
        except DeadlineExceeded as error:
            if begins in await log.peek():
                return error
        else:
            raise AssertionError(f"it was answered within {seconds:g} s")
        seconds *= 4
