"""The W3C `traceparent` of a message, and the tracing library that the program may use. See `tracing`."""

from __future__ import annotations

import random
import re
import sys
from importlib import import_module
from typing import Any, Protocol

_HEADER = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}\Z")
_SPAN = slice(36, 52)  # where the span id stands in a header
_luck = random.Random()  # of its own: the program may seed the shared one


class Bridge(Protocol):
    """A tracing library that the program uses."""

    def take(self) -> str | None:
        """The header of its current span, if there is one."""
        ...

    def enter(self, header: str) -> Any:
        """Make a span from elsewhere its current one; what is returned goes to `leave`."""
        ...

    def leave(self, token: Any) -> None:
        """Undo `enter`."""
        ...


class OpenTelemetry:
    """The bridge to OpenTelemetry's API, which the program has imported."""

    def __init__(self) -> None:
        self._context: Any = import_module("opentelemetry.context")
        self._trace: Any = import_module("opentelemetry.trace")

    def take(self) -> str | None:
        """The header of the current span."""
        span = self._trace.get_current_span().get_span_context()
        if not span.is_valid:
            return None
        return f"00-{span.trace_id:032x}-{span.span_id:016x}-{int(span.trace_flags):02x}"

    def enter(self, header: str) -> Any:
        """Make the sender's span the current one."""
        trace = self._trace
        span = trace.SpanContext(
            trace_id=int(header[3:35], 16),
            span_id=int(header[_SPAN], 16),
            is_remote=True,
            trace_flags=trace.TraceFlags(int(header[53:55], 16)),
        )
        return self._context.attach(trace.set_span_in_context(trace.NonRecordingSpan(span)))

    def leave(self, token: Any) -> None:
        """The task's former context again."""
        self._context.detach(token)


bridge: Bridge | None = None
"""The library that the program has imported."""


def find_library() -> None:
    """Use OpenTelemetry from now on, if the program has imported it by now."""
    global bridge
    if bridge is None and "opentelemetry.trace" in sys.modules:
        bridge = OpenTelemetry()


def onward(header: str | None) -> str | None:
    """What a message sent under `header` carries: the library's span if there is one, else a new span of the trace."""
    if bridge is not None:
        taken = bridge.take()
        if taken is not None:
            return taken
    return None if header is None else f"{header[:36]}{new_span()}{header[52:]}"


def enter(header: str) -> Any:
    """A handler begins to serve a message that carries `header`; what is returned goes to `leave`."""
    return None if bridge is None else bridge.enter(header)


def leave(token: Any) -> None:
    """The handler has ended."""
    if token is not None and bridge is not None:
        bridge.leave(token)


def new_trace() -> str:
    """The header of a trace that begins here, and is to be recorded."""
    return f"00-{_luck.getrandbits(128) or 1:032x}-{new_span()}-01"


def is_header(header: Any) -> bool:
    """Whether `header` is a well-formed `traceparent`."""
    return isinstance(header, str) and _HEADER.match(header) is not None


def new_span() -> str:
    """A span id."""
    return f"{_luck.getrandbits(64) or 1:016x}"
