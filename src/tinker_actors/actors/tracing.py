"""Trace context: which trace a message belongs to, as a W3C `traceparent` that travels with it.

`with trace() as header:` begins a trace and `with trace(header):` goes on with one from elsewhere (an HTTP request's
`traceparent`). Every ask, tell and stream sent in the block carries it, and so does everything sent while those are
served; each bears a new span id. Outside such a block nothing is carried and nothing is paid.

Where the program has imported OpenTelemetry's API, its current span is what is carried, unchanged, and it is the
parent of the spans that a handler starts.
"""

from __future__ import annotations

from types import TracebackType

from tinker_actors.actors import traceparent
from tinker_actors.actors.call import ACTIVE, Call, current_call, present


class trace:  # noqa: N801 - reads as a statement, like `deadline`
    """`with trace(header) as own:` everything sent in the block belongs to one trace; `own` is its `traceparent`.

    Without a header, or with one that is malformed (as the W3C recommendation has it), the block goes on with the
    current trace, or begins one.
    """

    def __init__(self, header: str | None = None) -> None:
        self._header = header

    def __enter__(self) -> str:
        header = self._header if self._header is not None and traceparent.is_header(self._header) else current_trace()
        if header is None:
            header = traceparent.new_trace()
        chain, due, _ = present()
        self._call: Call = [chain, due, header, True]
        self._token = current_call.set(self._call)
        self._entered = traceparent.enter(header)
        return header

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._call[ACTIVE] = False
        traceparent.leave(self._entered)
        current_call.reset(self._token)


def current_trace() -> str | None:
    """The `traceparent` of the trace block, or of the message being served, around the caller; None outside of both."""
    taken = None if traceparent.bridge is None else traceparent.bridge.take()
    if taken is not None:
        return taken
    return present()[2]
