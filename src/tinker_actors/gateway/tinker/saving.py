"""Saving: training checkpoints, weights for samplers, and weights to take elsewhere."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

from fastapi import APIRouter
from pydantic import Field
from starlette.responses import Response

from tinker_actors.errors import ConfigError, PolicyError
from tinker_actors.gateway.caller import CallerOf, needs
from tinker_actors.gateway.futures import Answer
from tinker_actors.gateway.gateway_of import GatewayOf
from tinker_actors.gateway.record_kinds import CheckpointKind, CheckpointRecord, ModelRecord, SamplerRecord
from tinker_actors.gateway.tinker.checkpoints import expiry
from tinker_actors.gateway.tinker.encryption import Encryption
from tinker_actors.gateway.tinker.shared import Body, promise
from tinker_actors.policies import Handle, SnapshotStore
from tinker_actors.policies.handles import check_name
from tinker_actors.training import Trainer

router = APIRouter()

_SEGMENTS: dict[CheckpointKind, str] = {
    "training": "weights",
    "sampler": "sampler_weights",
    "external": "external_weights",
}


class SaveWeights(Body):
    """A training checkpoint."""

    model_id: str
    path: str | None = None
    seq_id: int | None = None
    ttl_seconds: int | None = Field(default=None, ge=1)
    overwrite: bool = False
    user_metadata: dict[str, str] | None = None


class SaveForSampler(Body):
    """Weights to sample with: under a name, or for a sampling session alone."""

    model_id: str
    path: str | None = None
    sampling_session_seq_id: int | None = Field(default=None, ge=0)
    kind: Literal["snapshot", "inflight"] = "snapshot"
    seq_id: int | None = None
    ttl_seconds: int | None = Field(default=None, ge=1)
    user_metadata: dict[str, str] | None = None

    def check_form(self) -> None:
        """Refuse a mixture of a name and a sampling session, of which each has fields of its own.

        Raises:
            ConfigError: Names the field that doesn't go with the others.
        """
        if self.path is None and self.sampling_session_seq_id is None:
            raise ConfigError("path or sampling_session_seq_id is needed: a name, or a sampling session")
        if self.path is not None and (self.sampling_session_seq_id is not None or self.kind != "snapshot"):
            raise ConfigError(
                "path is set; sampling_session_seq_id and kind='inflight' belong to weights without a name"
            )
        if self.path is None and (self.ttl_seconds is not None or self.user_metadata is not None):
            raise ConfigError(
                "ttl_seconds and user_metadata belong to weights with a name (path); others go with their session"
            )


class SaveExternal(Body):
    """Weights to take elsewhere."""

    model_id: str
    path: str
    seq_id: int | None = None
    ttl_seconds: int | None = Field(default=None, ge=1)
    age_encryption_recipients: list[str] | None = None


@router.post("/save_weights", dependencies=[needs("train")])
async def save_weights(body: SaveWeights, caller: CallerOf, gateway: GatewayOf) -> Response:
    """Save all that a model's training depends on."""
    record = gateway.records.model(caller, body.model_id)
    trainer = gateway.runtime.engines_of(record.base_model).trainer

    async def save() -> Answer:
        expiry(body.ttl_seconds)  # refused before anything is stored
        name = body.path or f"step-{secrets.token_hex(4)}"
        path = _path(record, "training", name)
        if gateway.records.checkpoints.get(path) is not None and not body.overwrite:
            raise PolicyError(f"{path} exists; choose another name, or overwrite it")
        async with gateway.checkpoints.storing(record.model_id, record.base_model, name=name) as handle:
            await trainer.save(record.model_id, Handle.parse(handle).name)
            await _keep(gateway, record, "training", path, handle, body, caller.key)
        return Answer.of({"type": "save_weights", "path": path})

    return promise(gateway.training.submit(caller, body.model_id, "save_weights", body.seq_id, save))


@router.post("/save_weights_for_sampler", dependencies=[needs("train")])
async def save_weights_for_sampler(body: SaveForSampler, caller: CallerOf, gateway: GatewayOf) -> Response:
    """Publish a model's weights."""
    record = gateway.records.model(caller, body.model_id)
    trainer = gateway.runtime.engines_of(record.base_model).trainer

    async def save() -> Answer:
        body.check_form()
        answer = {"type": "save_weights_for_sampler"}
        if body.path is not None:
            expiry(body.ttl_seconds)
            path = _new_path(gateway, record, "sampler", body.path)
            async with _published(gateway, record, trainer) as handle:
                await _keep(gateway, record, "sampler", path, handle, body, caller.key)
            return Answer.of({**answer, "path": path})
        sampler_id = f"{record.session_id}:sample:{body.sampling_session_seq_id}"
        sampler = SamplerRecord(
            sampler_id=sampler_id,
            tenant=record.tenant,
            session_id=record.session_id,
            base_model=record.base_model,
            kind=body.kind,
            created_at=time.time(),
            model_id=record.model_id,
        )
        async with _published(gateway, record, trainer) as handle:
            await gateway.checkpoints.put_sampler(sampler, handle)
        return Answer.of({**answer, "sampling_session_id": sampler_id})

    return promise(gateway.training.submit(caller, body.model_id, "save_weights_for_sampler", body.seq_id, save))


@router.post("/save_weights_external", dependencies=[needs("train")])
async def save_weights_external(body: SaveExternal, caller: CallerOf, gateway: GatewayOf) -> Response:
    """Save a model's adapter as a PEFT directory, for any server that reads such."""
    record = gateway.records.model(caller, body.model_id)
    trainer = gateway.runtime.engines_of(record.base_model).trainer

    async def save() -> Answer:
        encryption = None if body.age_encryption_recipients is None else Encryption(body.age_encryption_recipients)
        expiry(body.ttl_seconds)
        path = _new_path(gateway, record, "external", body.path)
        async with (
            _published(gateway, record, trainer) as plain,
            _encrypted(gateway, record, plain, encryption) as handle,
        ):
            kept = await _keep(gateway, record, "external", path, handle, body, caller.key)
        return Answer.of({"type": "save_weights_external", "path": path, "size_bytes": kept.size})

    return promise(gateway.training.submit(caller, body.model_id, "save_weights_external", body.seq_id, save))


@asynccontextmanager
async def _published(gateway: GatewayOf, record: ModelRecord, trainer: Trainer) -> AsyncIterator[str]:
    """A model's present weights in the store, which the block puts on record."""
    async with gateway.checkpoints.storing(record.model_id, record.base_model) as handle:
        await trainer.publish(record.model_id, handle=handle)
        yield handle


@asynccontextmanager
async def _encrypted(
    gateway: GatewayOf, record: ModelRecord, plain: str, encryption: Encryption | None
) -> AsyncIterator[str]:
    """An encrypted copy of a snapshot, which the block puts on record in its place; the snapshot without encryption."""
    if encryption is None:
        yield plain
        return
    async with gateway.checkpoints.storing(record.model_id, record.base_model) as handle:
        await asyncio.to_thread(encryption.copy, SnapshotStore(gateway.runtime.store), plain, handle)
        yield handle


def _path(record: ModelRecord, kind: CheckpointKind, name: str) -> str:
    return f"tinker://{record.model_id}/{_SEGMENTS[kind]}/{check_name('path', name)}"


def _new_path(gateway: GatewayOf, record: ModelRecord, kind: CheckpointKind, name: str) -> str:
    path = _path(record, kind, name)
    if gateway.records.checkpoints.get(path) is not None:
        raise PolicyError(f"{path} exists; choose another name, or delete it")
    return path


async def _keep(
    gateway: GatewayOf,
    model: ModelRecord,
    kind: CheckpointKind,
    path: str,
    handle: str,
    asked: SaveWeights | SaveForSampler | SaveExternal,
    key: str,
) -> CheckpointRecord:
    """Remember a checkpoint, saved by whoever has this API key."""
    now, expires_at = time.time(), expiry(asked.ttl_seconds)
    present = gateway.records.models.get(model.model_id) or model  # its rank may be a loaded checkpoint's
    external = isinstance(asked, SaveExternal)
    kept = CheckpointRecord(
        path=path,
        tenant=model.tenant,
        model_id=model.model_id,
        kind=kind,
        handle=handle,
        base_model=model.base_model,
        rank=present.rank,
        created_at=now,
        size=await asyncio.to_thread(_size, gateway.runtime.store, handle),
        expires_at=expires_at,
        user_metadata=(None if external else asked.user_metadata) or {},
        encrypted=external and asked.age_encryption_recipients is not None,
    )
    await gateway.checkpoints.put(kept)
    gateway.accounts.used(model.tenant, model.session_id, model.base_model, {"checkpoints": 1})
    gateway.accounts.note(model.tenant, "checkpoint_create", path=path, key=key)
    return kept


def _size(store: Path, handle: str) -> int:
    folder = Path(SnapshotStore(store).get(handle).path)
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
