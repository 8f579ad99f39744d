"""The call in progress: what travels with the asks that a handler makes while it serves a message."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from contextvars import ContextVar

Chain = tuple[tuple[int, str], ...]
"""The actors that wait for this call, outermost first: (actor id, "name.method")."""


class Call:
    """One message being served, or one `deadline()` block.

    Attributes:
        chain: actors whose one-at-a-time handler waits for what is asked here, this one included.
        deadline: `loop.time()` by which everything asked here must be answered, or None.
        active: False once the handler or block ended; tasks that outlive it are bound by neither.
    """

    __slots__ = ("active", "chain", "deadline")

    def __init__(self, chain: Chain, deadline: float | None) -> None:
        self.chain = chain
        self.deadline = deadline
        self.active = True


current_call: ContextVar[Call | None] = ContextVar("current_call", default=None)


def inherited(timeout: float | None, loop: AbstractEventLoop) -> tuple[Chain, float | None]:
    """The chain and the deadline that an ask made here carries; `timeout` in seconds can only shorten it."""
    call = current_call.get()
    due = None if timeout is None else loop.time() + timeout
    if call is None or not call.active:
        return (), due
    if call.deadline is not None and (due is None or call.deadline < due):
        due = call.deadline
    return call.chain, due
