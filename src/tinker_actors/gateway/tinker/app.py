"""The Tinker API's routes, under `/api/v1`."""

from __future__ import annotations

from fastapi import APIRouter

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

router = APIRouter(prefix="/api/v1", tags=["tinker"])
router.include_router(config.router)
router.include_router(sessions.router)
router.include_router(fetching.router)
router.include_router(samplers.router)
router.include_router(sampling.router)
router.include_router(models.router)
router.include_router(training.router)
router.include_router(saving.router)
router.include_router(checkpoints.router)
router.include_router(downloads.router)
router.include_router(training_runs.router)
router.include_router(session_lists.router)
router.include_router(account_routes.router)
