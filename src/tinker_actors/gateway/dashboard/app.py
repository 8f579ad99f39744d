"""The dashboard's routes: the page at `/`, its files, and the data that it shows."""

from __future__ import annotations

from fastapi import APIRouter

from tinker_actors.gateway.dashboard import health, jobs, live, mesh, page, policies, rollouts

router = APIRouter(include_in_schema=False)
for room in (page, jobs, rollouts, policies, mesh, health, live):
    router.include_router(room.router)
