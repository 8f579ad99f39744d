"""Making models: new ones, and ones that go on from a checkpoint."""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
import time
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from tinker_actors.errors import ConfigError, PolicyError
from tinker_actors.gateway.caller import Caller, CallerOf, needs
from tinker_actors.gateway.futures import Answer
from tinker_actors.gateway.gateway_of import GatewayOf
from tinker_actors.gateway.record_kinds import ModelRecord
from tinker_actors.gateway.refusals import RefusalError
from tinker_actors.gateway.tinker.reading import find_by, note_read, readers
from tinker_actors.gateway.tinker.shared import Body, promise
from tinker_actors.gateway.writing import json_response
from tinker_actors.models import resolve
from tinker_actors.policies import PolicySpec, Role

router = APIRouter()

ALPHA = 32.0
"""LoRA's alpha, which the API has no field for: adapters are scaled by 32 / rank whatever the rank."""

MOST_RANK = 512


class LoraSettings(Body):
    """What is adapted, and how."""

    rank: int = Field(ge=1, le=MOST_RANK)
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True

    def targets(self) -> tuple[Role, ...]:
        """The roles of the layers that are adapted.

        Raises:
            ConfigError: There are none.
        """
        wanted: dict[Role, bool] = {
            "attention": self.train_attn,
            "mlp": self.train_mlp,
            "unembed": self.train_unembed,
        }
        found: tuple[Role, ...] = tuple(role for role, is_wanted in wanted.items() if is_wanted)
        if found:
            return found
        raise ConfigError("train_attn, train_mlp and train_unembed are all false; at least one is needed")


class OptimizerSettings(Body):
    """Which optimizer."""

    type: str = "adamw"


class CreateModel(Body):
    """A new model."""

    session_id: str
    model_seq_id: int = Field(ge=0)
    base_model: str
    user_metadata: dict[str, Any] | None = None
    lora_config: LoraSettings | None = None
    optimizer_config: OptimizerSettings = OptimizerSettings()


_OF_A_NEW_MODEL = ("model_seq_id", "base_model", "user_metadata", "optimizer_config")
"""What says how a checkpoint's new model is to be made."""


class LoadWeights(Body):
    """A checkpoint to go on from: for a new model (`session_id`, `model_seq_id`), or for one that was just made."""

    path: str
    optimizer: bool
    session_id: str | None = None
    model_seq_id: int | None = Field(default=None, ge=0)
    model_id: str | None = None
    seq_id: int | None = None
    base_model: str | None = None
    user_metadata: dict[str, Any] | None = None
    optimizer_config: OptimizerSettings | None = None
    weights_access_token: str | None = None

    def check_form(self) -> None:
        """Refuse a mixture of both forms, and half of one.

        Raises:
            RefusalError: Names the field that is missing, or that doesn't go with the others.
        """
        if self.session_id is None:
            first, needed, strange = "model_id", ("model_id",), _OF_A_NEW_MODEL
        else:
            first, needed, strange = "session_id", ("model_seq_id",), ("model_id", "seq_id")
        for name in needed:
            if getattr(self, name) is None:
                raise RefusalError(
                    422,
                    f"{name} is missing; session_id and model_seq_id, or model_id, are needed",
                    code="invalid_request",
                )
        for name in strange:
            if getattr(self, name) is not None:
                raise RefusalError(422, f"{name} is set; it doesn't go with {first}", code="invalid_request")
        if self.optimizer and self.optimizer_config is not None:
            raise RefusalError(
                422,
                "optimizer_config is set and optimizer is true; the checkpoint says which optimizer",
                code="invalid_request",
            )


class GetInfo(Body):
    """Which model."""

    model_id: str


def check_optimizer(name: str) -> None:
    """Refuse an optimizer that models aren't trained with here.

    Raises:
        ConfigError: It is another than AdamW.
    """
    if name != "adamw":
        raise ConfigError(
            f"optimizer type is {name!r}; LoRA models are trained with 'adamw' here (Dimuon's update isn't public, and "
            "this service's Muon is another one, for whole weights only)"
        )


@router.post("/create_model", dependencies=[needs("train")])
async def create_model(body: CreateModel, caller: CallerOf, gateway: GatewayOf) -> Response:
    """Make a model; its id is told by its future."""
    _check_session(body.session_id, caller, gateway)
    engines = gateway.runtime.engines_of(body.base_model)
    lora = body.lora_config
    record = _record(body, caller, base_model=body.base_model, rank=lora.rank if lora else 0)

    async def create() -> Answer:
        if lora is None:
            raise ConfigError("lora_config is missing; models are trained as LoRA adapters")
        check_optimizer(body.optimizer_config.type)
        spec = PolicySpec(
            base_model=engines.served.catalogue_name,
            name=record.model_id,
            rank=lora.rank,
            alpha=ALPHA,
            targets=lora.targets(),
            seed=secrets.randbits(31) if lora.seed is None else lora.seed,
        )
        await engines.trainer.create(spec)
        return Answer.of({"type": "create_model", "model_id": record.model_id})

    return promise(gateway.training.begin(record, "create_model", create), model_id=record.model_id)


@router.post("/load_weights", dependencies=[needs("train")])
async def load_weights(body: LoadWeights, request: Request, caller: CallerOf, gateway: GatewayOf) -> Response:
    """Go on from a checkpoint."""
    body.check_form()
    who = readers(request, caller, body.weights_access_token, gateway)
    if body.session_id is None:
        return _load_into(body, who, gateway)
    _check_session(body.session_id, caller, gateway)
    source, lent = find_by(who, body.path, gateway)
    source.check_legible()
    if body.base_model not in (None, source.base_model):
        detail = f"base_model is {body.base_model!r}; the checkpoint is one of {source.base_model!r}"
        raise RefusalError(400, detail, code="wrong_base_model")
    trainer = gateway.runtime.engines_of(source.base_model).trainer
    note_read(source, caller, gateway, purpose="load", **lent)
    record = _record(body, caller, base_model=source.base_model, rank=source.rank, parent=source.path)

    async def create() -> Answer:
        check_optimizer(record.optimizer)
        if source.kind == "training":
            await trainer.load(source.handle, policy=record.model_id, optimizer=body.optimizer)
        elif body.optimizer:
            raise ConfigError(
                f"optimizer is true, but {source.path} holds weights alone; a training checkpoint is needed"
            )
        else:
            await trainer.fork(source.handle, policy=record.model_id)
        return Answer.of({"type": "load_weights", "path": source.path, "model_id": record.model_id})

    return promise(gateway.training.begin(record, "load_weights", create), model_id=record.model_id)


def _load_into(body: LoadWeights, who: Sequence[Caller], gateway: GatewayOf) -> Response:
    """What earlier libraries do: put a checkpoint in the place of a model that was just made."""
    caller, model_id = who[0], body.model_id or ""
    first = gateway.training.is_first(caller, model_id, body.seq_id)
    record = gateway.records.model(caller, model_id)
    trainer = gateway.runtime.engines_of(record.base_model).trainer

    async def load() -> Answer:
        if not first:
            raise PolicyError(
                "load_weights is only permitted as a model's first command; make a model of the checkpoint"
            )
        source, lent = find_by(who, body.path, gateway)
        if (source.kind, source.base_model) != ("training", record.base_model):
            raise PolicyError(
                f"{body.path} is a {source.kind} checkpoint of {source.base_model!r}; a training one of "
                f"{record.base_model!r} is needed"
            )
        note_read(source, caller, gateway, purpose="load", **lent)
        await trainer.load(source.handle, policy=model_id, optimizer=body.optimizer, replacing=True)
        gateway.records.models.update(model_id, rank=source.rank, parent=source.path)
        return Answer.of({"type": "load_weights", "path": source.path, "model_id": model_id})

    return promise(gateway.training.submit(caller, model_id, "load_weights", body.seq_id, load), model_id=model_id)


@router.post("/get_info", dependencies=[needs("train", "read")])
async def get_info(body: GetInfo, request: Request, caller: CallerOf, gateway: GatewayOf) -> Response:
    """What a model is. A client of the same host is given the folder of the tokenizer."""
    record = gateway.records.model(caller, body.model_id)
    served = gateway.runtime.engines_of(record.base_model).served
    folder = str(resolve(served.catalogue_name).tokenizer_path)
    model_data = {
        "model_name": record.base_model,
        "tokenizer_id": folder if _is_local(request) else None,
    }
    return json_response(
        {
            "type": "get_info",
            "model_data": model_data,
            "model_id": record.model_id,
            "is_lora": True,
            "lora_rank": record.rank,
            "model_name": record.base_model,
            "optimizer_config": {"type": record.optimizer},
        }
    )


def _check_session(session_id: str, caller: CallerOf, gateway: GatewayOf) -> None:
    session = gateway.records.session(caller, session_id)
    if session.ended_at is not None:
        raise RefusalError(404, f"session {session_id!r} has ended: {session.ended}", code="session_ended")


def _record(
    body: CreateModel | LoadWeights, caller: CallerOf, *, base_model: str, rank: int, parent: str | None = None
) -> ModelRecord:
    now = time.time()
    return ModelRecord(
        model_id=f"{body.session_id}:train:{body.model_seq_id}",
        tenant=caller.tenant,
        session_id=body.session_id or "",
        base_model=base_model,
        rank=rank,
        optimizer=(body.optimizer_config or OptimizerSettings()).type,
        created_at=now,
        used_at=now,
        user_metadata=body.user_metadata or {},
        parent=parent,
    )


def _is_local(request: Request) -> bool:
    """Whether the client is on this host, where it can read what this process can."""
    with contextlib.suppress(ValueError):
        return request.client is not None and ipaddress.ip_address(request.client.host).is_loopback
    return False
