"""The call in progress: what travels with the asks that a handler makes while it serves a message."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from contextvars import ContextVar
from typing import Any

from tinker_actors.actors import traceparent

Chain = tuple[tuple[int, str], ...]
"""The actors that wait for this call, outermost first: (actor id, "name.method")."""


Call = list[Any]
"""One message being served, or one `deadline()` block: `[chain, deadline, trace, active]`.

A list, because one is made for every message and an object costs twice as much. Its items:

- `chain`: the `Chain` of actors whose one-at-a-time handler waits for what is asked here, this one included.
- `deadline`: `loop.time()` by which everything asked here must be answered, or None.
- `trace`: the `traceparent` of the trace that this belongs to, or None.
- `active`: False once the handler or block ended; tasks that outlive it are bound by neither.
"""

CHAIN, ACTIVE = 0, 3  # indices in a `Call`

current_call: ContextVar[Call | None] = ContextVar("current_call", default=None)


def present() -> tuple[Chain, float | None, str | None]:
    """The chain, deadline and trace of the call in progress; nothing of them where there is none."""
    call = current_call.get()
    if call is None or not call[ACTIVE]:
        return (), None, None
    chain, due, trace, _ = call
    return chain, due, trace


def inherited(timeout: float | None, loop: AbstractEventLoop) -> tuple[Chain, float | None, str | None]:
    """The chain, deadline and trace that an ask made here carries; `timeout` in seconds can only shorten the second."""
    chain, due, trace = present()
    if timeout is not None:
        own = loop.time() + timeout
        if due is None or own < due:
            due = own
    if trace is not None or traceparent.bridge is not None:
        trace = traceparent.onward(trace)
    return chain, due, trace


def inherited_trace() -> str | None:
    """The trace that a tell made here carries."""
    _, _, trace = present()
    if trace is not None or traceparent.bridge is not None:
        trace = traceparent.onward(trace)
    return trace
