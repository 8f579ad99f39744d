"""Trace context: what a message carries, where it is nested, and what OpenTelemetry makes of it."""

import re
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tinker_actors.actors import Actor, ActorRef, Mesh, concurrent, current_trace, deadline, trace, traceparent

HEADER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
FORM = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-01\Z")


class Traced(Actor):
    """Says under which trace it serves."""

    def __init__(self) -> None:
        self.told: list[str | None] = []

    async def here(self, route: list[Any]) -> list[str | None]:
        rest = await route[0].here(route[1:]) if route else []
        return [current_trace(), *rest]

    @concurrent
    async def beside(self) -> str | None:
        return current_trace()

    async def items(self) -> AsyncIterator[str | None]:
        yield current_trace()

    async def told_under(self) -> None:
        self.told.append(current_trace())

    async def read(self) -> list[str | None]:
        return self.told


def trace_id(header: str | None) -> str:
    assert header is not None
    assert FORM.match(header)
    return header[3:35]


async def test_nested_asks_carry_the_trace_and_each_has_a_span_of_its_own(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    # other tests import the library, whose spans would count
    monkeypatch.setattr(traceparent, "find_library", lambda: None)
    monkeypatch.setattr(traceparent, "bridge", None)
    route: list[ActorRef] = [await mesh.spawn(Traced, node=i % mesh.nodes) for i in range(3)]  # type: ignore[misc]
    with trace(HEADER) as own:
        assert own == HEADER
        assert current_trace() == HEADER
        headers = [HEADER, *await route[0].here(route[1:])]
    assert {trace_id(header) for header in headers} == {HEADER[3:35]}
    assert len(set(headers)) == 4
    assert current_trace() is None
    assert await route[0].here(route[1:]) == [None, None, None]


async def test_tells_streams_and_concurrent_messages_carry_the_trace_too(mesh: Mesh) -> None:
    actor = await mesh.spawn(Traced)
    with trace() as own:
        actor.tell.told_under()
        headers = [await actor.beside(), *[item async for item in actor.stream.items()], *await actor.read()]
        async with deadline(30.0):
            headers.append(await actor.beside())
    assert [trace_id(header) for header in headers] == [trace_id(own)] * 4
    assert await actor.beside() is None


async def test_blocks_nest_and_a_malformed_header_begins_a_new_trace() -> None:
    for bad in ("", "00-" + "0" * 32 + "-00f067aa0ba902b7-01", HEADER + "x", "ff" + HEADER[2:], HEADER.upper()):
        with trace(bad) as own:
            assert trace_id(own) != HEADER[3:35]
    with trace() as outer:
        with trace() as inner:
            assert inner == outer
        with trace(HEADER):
            assert current_trace() == HEADER
        assert current_trace() == outer


def test_opentelemetry_spans_of_a_handler_have_the_callers_span_as_parent() -> None:
    pytest.importorskip("opentelemetry.trace")
    program = """
        import asyncio
        from opentelemetry import trace as otel
        from test_actors_tracing import HEADER, Traced
        from tinker_actors.actors import Mesh, current_trace, trace

        span = otel.SpanContext(5, 7, is_remote=False, trace_flags=otel.TraceFlags(1))
        HERE = f"00-{5:032x}-{7:016x}-01"

        class Spans(Traced):
            async def span(self):
                context = otel.get_current_span().get_span_context()
                return [context.trace_id, context.span_id, context.is_remote]

        async def main():
            async with Mesh() as mesh:
                actor = await mesh.spawn(Spans)
                with otel.use_span(otel.NonRecordingSpan(span)):
                    print(await actor.span(), await actor.here([await mesh.spawn(Traced)]) == [HERE, HERE])
                    print(await actor.beside() == HERE, [item async for item in actor.stream.items()] == [HERE])
                print(await actor.span(), current_trace())
                with trace(HEADER):
                    print(await actor.here([]) == [HEADER])

        asyncio.run(main())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=250,
        env=_environment(),
    )
    assert done.stdout.splitlines() == ["[5, 7, True] True", "True True", "[0, 0, False] None", "True"], done.stderr


def _environment() -> dict[str, str]:
    import os
    from pathlib import Path

    return os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
