"""Who may ask what: every route, as nobody, without the scope, as another tenant and as the owner."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from tests.gateway.every_route import ANY_KEY, Route, every_route
from tests.gateway.owning_service import BODIES, MISSING, Service, owning_service

TRAVERSALS = (
    "../../../etc/passwd",
    "..%2f..%2fetc%2fpasswd",
    "%2e%2e/%2e%2e/etc/passwd",
    "/etc/passwd",
    "a%00b",
    "~root",
)

CONFLICTS = {
    ("POST /jobs/v1/jobs/{job}/resume", 409),
    ("POST /dashboard/api/jobs/{job}/resume", 409),
    ("DELETE /jobs/v1/jobs/{job}", 409),
    ("DELETE /dashboard/api/jobs/{job}", 409),
    ("POST /api/v1/create_custom_loss", 400),
}
"""What the owner is refused because of how things stand: a job that runs can't be resumed, nor be deleted, and no loss
of one's own is computed by the service."""

SILENT = {"POST /api/v1/cancel_future", "POST /api/v1/sessions/search"}
"""Routes that say the same whether or not there is anything of that id."""


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    async with owning_service(tmp_path) as service:
        yield service


def closed(app: FastAPI) -> list[Route]:
    return [route for route in every_route(app) if not route.is_open and route.path not in ANY_KEY]


async def test_every_route_says_what_a_key_needs_for_it(service: Service):
    routes = closed(service.app)
    assert len(routes) > 5
    forgotten = [route.name for route in routes if not route.needs or route.lacking is None]
    assert not forgotten, f"these routes need `dependencies=[needs(...)]` (gateway/caller.py): {forgotten}"


async def test_nobody_gets_anything_from_any_route(service: Service):
    for route in every_route(service.app):
        if not route.is_open:
            answer = await service.ask(route.asked(MISSING, BODIES), None)
            assert (route.name, answer.status_code) == (route.name, 401)


async def test_a_key_without_the_scope_gets_nothing_from_any_route(service: Service):
    for route in closed(service.app):
        if route.lacking is not None:
            answer = await service.ask(route.asked(service.owned(), BODIES), service.key_with(route.lacking))
            assert (route.name, answer.status_code) == (route.name, 403)


async def test_what_is_anothers_looks_like_what_is_nobodys_on_every_route(service: Service):
    for route in closed(service.app):
        owned = service.owned()
        missing = {name: MISSING[name] for name in owned}
        if route.asked(owned, BODIES) == route.asked(missing, BODIES):  # it names nothing: it may be a list
            listed = (await service.ask(route.asked(owned, BODIES), service.keys["other"])).text
            told = [name for name, value in owned.items() if len(str(value)) > 8 and str(value) in listed]
            assert not told, f"{route.name}: {listed}"
            continue
        theirs = await service.outcome(route.asked(owned, BODIES), service.keys["other"], owned)
        nobodys = await service.outcome(route.asked(missing, BODIES), service.keys["other"], missing)
        assert theirs[0] >= 400 or route.name in SILENT, f"{route.name}: {theirs}"
        assert (route.name, *theirs) == (route.name, *nobodys)


async def test_the_owner_gets_on_every_route_what_is_its_own(service: Service):
    for route in closed(service.app):
        owned = service.owned()
        for_admins = frozenset({"admin"}) in route.needs
        key = service.key_with("admin") if for_admins else service.keys["owner"]
        status, text = await service.outcome(route.asked(owned, BODIES), key, owned)
        assert status < 400 or (route.name, status) in CONFLICTS, f"{route.name}: {status} {text}"
        assert "not known" not in text, f"{route.name}: {text}"


async def test_no_id_leads_out_of_the_service(service: Service):
    for route in closed(service.app):
        for path in TRAVERSALS:
            ids = dict.fromkeys(MISSING, path)
            for key in service.keys.values():
                status, text = await service.outcome(route.asked(ids, BODIES), key, {})
                assert "root:" not in text, route.name
                assert status < 500, f"{route.name} with {path!r}: {status} {text}"
                if route.parameters:
                    assert status >= 400, f"{route.name} with {path!r}: {status} {text}"
