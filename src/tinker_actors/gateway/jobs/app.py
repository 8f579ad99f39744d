"""The routes of jobs, under `/jobs/v1`."""

from __future__ import annotations

from fastapi import APIRouter

from tinker_actors.gateway.jobs import keeping, managing, reading, snapshots

router = APIRouter(prefix="/jobs/v1", tags=["jobs"])
router.include_router(managing.router)
router.include_router(reading.router)
router.include_router(snapshots.router)
router.include_router(keeping.router)
