"""What is counted, logged and traced of a request."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client import generate_latest
from tests.gateway.gateways import gateway_at

from tinker_actors.actors.tracing import current_trace
from tinker_actors.errors import DataError
from tinker_actors.gateway.admission import Admission
from tinker_actors.gateway.gateway import Gateway, create_app
from tinker_actors.gateway.keys import KeyStore
from tinker_actors.gateway.observing.logs import JsonFormatter, LineFormatter, configure_logging
from tinker_actors.gateway.runtime import Runtime

PARENT = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
TRACE = PARENT[3:35]


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """What a JSON log has of the gateway."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("tinker_actors.gateway")
    before = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield stream
    logger.removeHandler(handler)
    logger.setLevel(before)


def lines(stream: io.StringIO) -> list[dict]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


async def test_a_request_is_in_the_log_with_its_trace_tenant_and_key(tmp_path: Path, written: io.StringIO):
    with KeyStore(tmp_path / "keys.sqlite") as keys:
        key, secret = keys.add("acme")
        async with (
            Runtime(tmp_path / "root", [], in_process=True) as runtime,
            Gateway(runtime=runtime, admit=Admission(keys)) as gateway,
        ):
            transport = httpx.ASGITransport(create_app(gateway))
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                headers = {"X-API-Key": secret, "traceparent": PARENT}
                answer = await client.post("/api/v1/create_session", json={}, headers=headers)
                assert answer.headers["x-trace-id"] == TRACE
                refused = await client.post("/api/v1/create_session", json={}, headers={"X-API-Key": "tml-x"})
    first, second = lines(written)
    assert {name: first[name] for name in ("trace_id", "tenant", "key", "status", "method", "path")} == {
        "trace_id": TRACE,
        "tenant": "acme",
        "key": key.id,
        "status": 200,
        "method": "POST",
        "path": "/api/v1/create_session",
    }
    assert (second["status"], second["refused"], second["trace_id"]) == (
        401,
        "invalid_api_key",
        refused.headers["x-trace-id"],
    )
    assert "tenant" not in second
    assert secret not in written.getvalue()


async def test_whatever_fails_is_answered_with_an_id_that_the_log_has_and_with_nothing_else(
    tmp_path: Path, written: io.StringIO
):
    async with gateway_at(tmp_path) as (gateway, _):
        app = create_app(gateway)

        @app.get("/v1/boom")
        async def boom() -> None:
            raise ZeroDivisionError("a secret of the inside")

        @app.get("/bad")
        async def bad() -> None:
            raise DataError("what was wrong with the input")

        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            answer = await client.get("/v1/boom", headers={"traceparent": PARENT})
            assert (answer.status_code, answer.json()["error"]["trace_id"]) == (500, TRACE)
            assert "secret" not in answer.text
            answer = await client.get("/bad")
            assert (answer.status_code, answer.json()["detail"]) == (400, "what was wrong with the input")
    failed = next(line for line in lines(written) if line["level"] == "error")
    assert failed["trace_id"] == TRACE
    assert "a secret of the inside" in failed["error"]


async def test_messages_to_actors_carry_the_trace_of_the_request(tmp_path: Path):
    async with gateway_at(tmp_path) as (gateway, _):
        app = create_app(gateway)

        @app.get("/trace")
        async def trace() -> str | None:
            return current_trace()

        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            assert (await client.get("/trace", headers={"traceparent": PARENT})).json()[3:35] == TRACE
            own = await client.get("/trace", headers={"traceparent": "00-nonsense"})
            assert own.json()[3:35] == own.headers["x-trace-id"] != TRACE


async def test_requests_are_counted_by_route_and_never_by_path(tmp_path: Path):
    async with gateway_at(tmp_path) as (gateway, client):
        for number in range(3):
            await client.post(f"/api/v1/sessions/{number}/finish", json={})
            await client.get(f"/no/such/{number}")
        await client.request("BREW", "/healthz")
        sample = gateway.metrics.registry.get_sample_value
        finish = {"method": "POST", "route": "/api/v1/sessions/{session_id}/finish"}
        assert sample("tinker_actors_http_requests_total", finish | {"status": "404"}) == 3
        assert sample("tinker_actors_http_request_duration_seconds_count", finish) == 3
        nowhere = {"method": "GET", "route": "(none)", "status": "404"}
        assert sample("tinker_actors_http_requests_total", nowhere) == 3
        assert sample("tinker_actors_http_refused_total", {"reason": "not_found"}) == 3
        assert sample("tinker_actors_http_admission_seconds_count") == 7
        assert sample("tinker_actors_http_requests_in_flight") == 0
        assert "BREW" not in generate_latest(gateway.metrics.registry).decode()


async def test_mounted_in_another_application_paths_mean_what_they_mean_alone(tmp_path: Path):
    from fastapi import FastAPI

    async with gateway_at(tmp_path) as (gateway, _):
        outer = FastAPI()
        outer.mount("/within", create_app(gateway))
        transport = httpx.ASGITransport(outer)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            assert (await client.get("/within/healthz", headers={"Host": "evil.example"})).status_code == 200
            assert (await client.get("/within/metrics", headers={"Host": "evil.example"})).status_code == 403
            answer = await client.post("/within/v1/completions", json={"model": "none", "prompt": ""})
            assert answer.json()["error"]["type"] == "invalid_request_error"
            answer = await client.get("/within/v1/metrics", headers={"Host": "evil.example"})
            assert answer.json()["error"]["code"] == "forbidden"


def test_no_request_can_forge_a_line_of_the_log():
    record = logging.makeLogRecord({"msg": "asked for %s", "args": ("/x\n2026 ERROR forged\x1b[2J",)})
    assert LineFormatter().format(record).count("\n") == 0
    assert "\x1b" not in LineFormatter().format(record)
    assert JsonFormatter().format(record).count("\n") == 0


def test_logs_are_lines_for_people_unless_json_is_asked_for(tmp_path: Path):
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    try:
        for as_json in (False, True):
            configure_logging(as_json=as_json, path=tmp_path / "log")
            logging.getLogger("a.b").info("hello %s", "there", extra={"job": "j1"})
        for handler in root.handlers:
            handler.close()
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    human, machine = (tmp_path / "log").read_text().splitlines()
    assert human.endswith("INFO a.b: hello there job=j1")
    found = json.loads(machine)
    assert (found["message"], found["job"], found["level"]) == ("hello there", "j1", "info")
