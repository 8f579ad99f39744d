"""The Tinker API's routes, under `/api/v1`."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.routing import APIRoute

from tinker_actors.gateway.tinker import (
    account_routes,
    checkpoints,
    config,
    downloads,
    fetching,
    models,
    samplers,
    sampling,
    saving,
    session_lists,
    sessions,
    training,
    training_runs,
)

_MOST_ASKED_FIRST = (
    fetching.router,
    sampling.router,
    training.router,
    sessions.router,
    samplers.router,
    saving.router,
    models.router,
    config.router,
    checkpoints.router,
    downloads.router,
    training_runs.router,
    session_lists.router,
    account_routes.router,
)

router = APIRouter(prefix="/api/v1", tags=["tinker"])
for part in _MOST_ASKED_FIRST:
    for route in part.routes:
        # not `include_router`: a request is matched anew on every level of routers, which costs as much as all the rest
        assert isinstance(route, APIRoute)
        router.add_api_route(
            route.path, route.endpoint, methods=sorted(route.methods or ()), dependencies=route.dependencies
        )
