"""The call in progress: what travels with the asks that a handler makes while it serves a message."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from contextvars import ContextVar

from tinker_actors.actors import traceparent

Chain = tuple[tuple[int, str], ...]
"""The actors that wait for this call, outermost first: (actor id, "name.method")."""


class Call:
    """One message being served, or one `deadline()` block.

    Attributes:
        chain: actors whose one-at-a-time handler waits for what is asked here, this one included.
        deadline: `loop.time()` by which everything asked here must be answered, or None.
        trace: the `traceparent` of the trace that this belongs to, or None.
        active: False once the handler or block ended; tasks that outlive it are bound by neither.
    """

    __slots__ = ("active", "chain", "deadline", "trace")

    def __init__(self, chain: Chain, deadline: float | None, trace: str | None = None) -> None:
        self.chain = chain
        self.deadline = deadline
        self.trace = trace
        self.active = True


current_call: ContextVar[Call | None] = ContextVar("current_call", default=None)


def inherited(timeout: float | None, loop: AbstractEventLoop) -> tuple[Chain, float | None, str | None]:
    """The chain, deadline and trace that an ask made here carries; `timeout` in seconds can only shorten the second."""
    call = current_call.get()
    due = None if timeout is None else loop.time() + timeout
    if call is None or not call.active:
        return (), due, None if traceparent.bridge is None else traceparent.onward(None)
    if call.deadline is not None and (due is None or call.deadline < due):
        due = call.deadline
    trace = call.trace
    if trace is not None or traceparent.bridge is not None:
        trace = traceparent.onward(trace)
    return call.chain, due, trace


def inherited_trace() -> str | None:
    """The trace that a tell made here carries."""
    call = current_call.get()
    trace = None if call is None or not call.active else call.trace
    if trace is not None or traceparent.bridge is not None:
        trace = traceparent.onward(trace)
    return trace
