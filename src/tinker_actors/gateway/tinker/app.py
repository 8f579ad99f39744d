"""The Tinker API's routes, under `/api/v1`."""

from __future__ import annotations

from fastapi import APIRouter

from tinker_actors.gateway.tinker import config, fetching, models, samplers, sampling, saving, sessions, training

router = APIRouter(prefix="/api/v1", tags=["tinker"])
router.include_router(config.router)
router.include_router(sessions.router)
router.include_router(fetching.router)
router.include_router(samplers.router)
router.include_router(sampling.router)
router.include_router(models.router)
router.include_router(training.router)
router.include_router(saving.router)
