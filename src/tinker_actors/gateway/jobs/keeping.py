"""Routes of the rows that clients upload for their jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Request

from tinker_actors.gateway.caller import Caller, CallerOf, needs
from tinker_actors.gateway.gateway_of import GatewayOf
from tinker_actors.gateway.jobs.bodies import DeletedBody, KeptUploadBody, UploadBody, UploadsBody
from tinker_actors.gateway.jobs.deleting import delete_upload, uploads_of
from tinker_actors.gateway.jobs.shared import scheduler_of, submissions_of, tenant_of
from tinker_actors.gateway.refusals import not_found

if TYPE_CHECKING:
    from tinker_actors.gateway.gateway import Gateway
    from tinker_actors.gateway.jobs.uploads import Kept

router = APIRouter()


@router.post("/uploads", dependencies=[needs("jobs")], status_code=201)
async def upload(request: Request, caller: CallerOf, gateway: GatewayOf) -> UploadBody:
    """Keep rows for jobs to come: the request's body is JSON Lines. The same rows have the same name."""
    kept = await submissions_of(gateway).uploads.take(caller.tenant, request.stream())
    return UploadBody(upload=kept.name, rows=kept.rows, bytes=kept.size)


@router.get("/uploads", dependencies=[needs("read", "jobs")])
async def uploads(caller: CallerOf, gateway: GatewayOf) -> UploadsBody:
    """What is kept, and which jobs still need it."""
    scheduler, found = scheduler_of(gateway), await uploads_of(gateway, tenant_of(caller))
    users = await scheduler.users_of_files([str(kept.path) for kept in found])
    bodies = [
        KeptUploadBody(
            upload=kept.name,
            tenant=kept.tenant,
            bytes=kept.size,
            used=kept.used,
            jobs=users.get(str(kept.path), []),
        )
        for kept in found
    ]
    most = submissions_of(gateway).uploads.most_of_tenant
    return UploadsBody(uploads=bodies, bytes=sum(kept.size for kept in found), most=most)


@router.delete("/uploads/{upload}", dependencies=[needs("jobs")])
async def delete(upload: str, caller: CallerOf, gateway: GatewayOf, tenant: str | None = None) -> DeletedBody:
    """Delete rows that no job needs any more; `tenant` says whose, where that isn't the caller's own."""
    kept = await _upload_of(gateway, caller, tenant or caller.tenant, upload)
    await delete_upload(gateway, kept)
    return DeletedBody(deleted=kept.name)


async def _upload_of(gateway: Gateway, caller: Caller, tenant: str, name: str) -> Kept:
    for kept in await uploads_of(gateway, tenant_of(caller)):
        if (kept.tenant, kept.name) == (tenant, name):
            return kept
    raise not_found("upload", name)
