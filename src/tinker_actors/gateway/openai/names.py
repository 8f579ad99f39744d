"""What a model's name stands for: a base model, a policy by its latest snapshot, or one snapshot by its path."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinker_actors.environments.openai.errors import ApiError
from tinker_actors.environments.openai.http import model_entry
from tinker_actors.errors import PolicyError
from tinker_actors.gateway.caller import Caller
from tinker_actors.gateway.record_kinds import CheckpointRecord, ModelRecord
from tinker_actors.gateway.records import LIVING
from tinker_actors.gateway.refusals import RefusalError
from tinker_actors.policies import SnapshotStore
from tinker_actors.policies.handles import SCHEME

if TYPE_CHECKING:
    from tinker_actors.gateway.gateway import Gateway


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is sampled from.

    Attributes:
        name: As the client named it.
        base_model: Name of the served base model.
        handle: The snapshot's; None for the base model itself.
    """

    name: str
    base_model: str
    handle: str | None


async def target_of(gateway: Gateway, caller: Caller, name: str) -> Target:
    """What a name stands for, as far as the caller may know.

    Raises:
        ApiError: Nothing that it may know of.
    """
    if not name:
        raise ApiError("model is missing; GET /v1/models names those that are served", param="model")
    if name in gateway.runtime.engines:
        return Target(name=name, base_model=name, handle=None)
    # the boundary between the gateway's refusals and the API's
    try:
        if name.startswith(SCHEME):
            found = gateway.records.checkpoint(caller, name)
            if found.kind == "sampler":
                return Target(name=name, base_model=found.base_model, handle=found.handle)
        else:
            model = gateway.records.model(caller, name)
            if (latest := await latest_of(gateway, model)) is not None:
                return Target(name=name, base_model=model.base_model, handle=latest)
            raise ApiError(
                f"model is {name!r}, which has stored nothing to sample from yet; save weights for the sampler first",
                status=404,
                param="model",
                code="model_not_found",
            )
    except RefusalError:
        pass
    raise ApiError(
        f"model is {name!r}, which is not known here; GET /v1/models names those that are",
        status=404,
        param="model",
        code="model_not_found",
    )


async def latest_of(gateway: Gateway, model: ModelRecord) -> str | None:
    """Handle of the snapshot that a policy published last; None if there is none."""
    return await asyncio.to_thread(_latest, gateway.runtime.store, model)


def _latest(store: Path, model: ModelRecord) -> str | None:
    try:
        return SnapshotStore(store).latest(model.model_id).handle
    except PolicyError:
        return None


async def listed(gateway: Gateway, caller: Caller) -> list[dict[str, Any]]:
    """The models that a caller may sample: base models, its policies, and snapshots that are its own or public."""
    served = gateway.runtime.engines
    entries = [model_entry(name, root=name, parent=None) for name in served]
    mine = ("1", ()) if caller.sees_all else ("tenant = ?", (caller.tenant,))
    models = [model for model in gateway.records.models.where(mine[0], *mine[1]) if model.base_model in served]
    stored = await asyncio.to_thread(lambda: [_latest(gateway.runtime.store, model) is not None for model in models])
    entries += [_model(model) for model, is_stored in zip(models, stored, strict=True) if is_stored]
    readable = f"({mine[0]} OR public) AND kind = 'sampler' AND {LIVING}"
    for found in gateway.records.checkpoints.where(readable, *mine[1], time.time()):
        if found.base_model in served:
            entries.append(_checkpoint(found, caller))
    return entries


async def shown(gateway: Gateway, caller: Caller, name: str) -> dict[str, Any]:
    """One model.

    Raises:
        ApiError: The caller may know of none of this name.
    """
    target = await target_of(gateway, caller, name)
    if target.handle is None:
        return model_entry(name, root=name, parent=None)
    if name.startswith(SCHEME):
        return _checkpoint(gateway.records.checkpoint(caller, name), caller)
    return _model(gateway.records.model(caller, name))


def _model(model: ModelRecord) -> dict[str, Any]:
    return model_entry(
        model.model_id, created=int(model.created_at), owner=model.tenant, root=model.base_model, parent=model.parent
    )


def _checkpoint(found: CheckpointRecord, caller: Caller) -> dict[str, Any]:
    # a public snapshot doesn't tell whose it is
    owner = found.tenant if found.tenant == caller.tenant or caller.sees_all else "public"
    return model_entry(
        found.path, created=int(found.created_at), owner=owner, root=found.base_model, parent=found.base_model
    )
