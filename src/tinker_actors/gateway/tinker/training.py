"""Training: passes over batches, and optimizer steps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request
from starlette.responses import Response

from tinker_actors.environments.threads import beside
from tinker_actors.errors import ConfigError, TinkerActorsError
from tinker_actors.gateway.caller import CallerOf, needs
from tinker_actors.gateway.futures import Answer
from tinker_actors.gateway.gateway_of import GatewayOf
from tinker_actors.gateway.record_kinds import ModelRecord
from tinker_actors.gateway.refusals import RefusalError
from tinker_actors.gateway.tinker import batches
from tinker_actors.gateway.tinker.batches import Batch
from tinker_actors.gateway.tinker.commands import Action, Pass
from tinker_actors.gateway.tinker.losses import datums_of, loss_of
from tinker_actors.gateway.tinker.models import check_optimizer
from tinker_actors.gateway.tinker.outputs import written
from tinker_actors.gateway.tinker.shared import Body, promise
from tinker_actors.models import load_tokenizer
from tinker_actors.training.contract import AdamParams, ForwardBackwardResult

router = APIRouter()

HeaderText = Annotated[str, Header()]


class AdamSettings(Body):
    """One step of AdamW."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0

    def params(self) -> AdamParams:
        """As the trainer takes it; a norm of 0 is no clipping."""
        values: dict[str, Any] = self.model_dump()
        return AdamParams(**{**values, "grad_clip_norm": self.grad_clip_norm or None})


class OtherSettings(Body):
    """One step of another optimizer."""

    type: str


class OptimStep(Body):
    """An optimizer step."""

    model_id: str
    seq_id: int | None = None
    adam_params: AdamSettings | None = None
    optimizer_params: OtherSettings | None = None


@router.post("/forward_backward", dependencies=[needs("train")])
async def forward_backward(
    request: Request,
    caller: CallerOf,
    gateway: GatewayOf,
    content_type: HeaderText = "application/json",
    content_encoding: HeaderText = "",
) -> Response:
    """A pass over a batch, with gradients or, in protobuf only, without."""
    read = batches.of_protobuf if "protobuf" in content_type else partial(batches.of_json, forward_only=False)
    return await _submitted(request, caller, gateway, content_encoding, read)


@router.post("/forward", dependencies=[needs("train")])
async def forward(
    request: Request, caller: CallerOf, gateway: GatewayOf, content_encoding: HeaderText = ""
) -> Response:
    """A pass without gradients, as libraries before 0.22 ask for it."""
    return await _submitted(request, caller, gateway, content_encoding, partial(batches.of_json, forward_only=True))


@router.post("/optim_step", dependencies=[needs("train")])
async def optim_step(body: OptimStep, caller: CallerOf, gateway: GatewayOf) -> Response:
    """Apply the gradients, and drop them."""
    record = gateway.records.model(caller, body.model_id)
    trainer = gateway.runtime.engines_of(record.base_model).trainer

    async def step() -> Answer:
        if body.optimizer_params is not None:
            check_optimizer(body.optimizer_params.type)
            raise ConfigError("optimizer_params is set; the settings of 'adamw' are given as adam_params")
        if body.adam_params is None:
            raise ConfigError("adam_params is missing; the settings of the step are needed")
        found = await trainer.optim_step(body.model_id, body.adam_params.params())
        return Answer.of({"metrics": {"grad_norm:mean": found.grad_norm, "step:max": float(found.step)}})

    return promise(
        gateway.training.submit(caller, body.model_id, "optim_step", body.seq_id, step), model_id=body.model_id
    )


@router.post("/create_custom_loss", dependencies=[needs("train")])
async def create_custom_loss() -> Response:
    """Refused: the service computes no losses of its clients' own; their library does, as a flag has told it."""
    raise RefusalError(
        400,
        "losses of one's own aren't computed by this service; forward_backward_custom computes them at the client",
        code="not_supported",
    )


async def _submitted(
    request: Request, caller: CallerOf, gateway: GatewayOf, encoding: str, read: Callable[[bytes], Batch]
) -> Response:
    body = await request.body()
    if encoding:  # a little may become much, which is held no longer than it is read
        batch = await asyncio.to_thread(lambda: read(batches.decompressed(body, encoding)))
    else:
        batch = await beside(partial(read, body), size=len(body))
    kind = "forward" if batch.forward_only else "forward_backward"
    record = gateway.records.model(caller, batch.model_id)
    if (known := gateway.training.known(caller, batch.model_id, batch.seq_id)) is None:
        work = await beside(partial(_work, batch, record, gateway), size=batch.size)
        known = gateway.training.submit(caller, batch.model_id, kind, batch.seq_id, work)
    return promise(known, model_id=batch.model_id)


def _work(batch: Batch, record: ModelRecord, gateway: GatewayOf) -> Pass | Action:
    """What a batch asks for. If it can't be read, a command that says so: those after it have their turn."""
    engines = gateway.runtime.engines_of(record.base_model)
    try:
        loss = loss_of(batch.loss, batch.settings, surrogate=gateway.tinker.stable_reinforce)
        rows = batch.rows(load_tokenizer(engines.served.catalogue_name).images)
        datums = datums_of(rows, loss)
    except TinkerActorsError as error:
        return partial(_refuse, error)
    tokens = sum(map(len, datums))

    async def answer(result: ForwardBackwardResult) -> Answer:
        gateway.accounts.used(record.tenant, record.session_id, record.base_model, {"trained": tokens})
        return await written(result, rows, loss)

    if batch.forward_only:
        look = partial(engines.trainer.forward, batch.model_id, datums, loss.config, every_target=True)
        return partial(_look, look, answer)
    return Pass(datums=datums, loss=loss.config, answer=answer)


async def _refuse(error: TinkerActorsError) -> Answer:
    raise error


async def _look(look: Callable[[], Any], answer: Callable[[ForwardBackwardResult], Awaitable[Answer]]) -> Answer:
    return await answer(await look())
