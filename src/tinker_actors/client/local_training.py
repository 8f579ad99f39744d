"""Training in this process."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from tinker_actors.client.joint import JointPasses
from tinker_actors.client.local_sampling import LocalSamples, single
from tinker_actors.data import Datum
from tinker_actors.errors import DataError, PolicyError
from tinker_actors.gateway.caller import LOCAL
from tinker_actors.gateway.gateway import Gateway
from tinker_actors.gateway.record_kinds import CheckpointKind, CheckpointRecord, ModelRecord, SamplerRecord
from tinker_actors.gateway.tinker.metric_names import named_metrics
from tinker_actors.models.catalogue import load_tokenizer
from tinker_actors.models.tokenizer import Tokenizer
from tinker_actors.policies import Handle, SnapshotStore
from tinker_actors.policies.handles import check_name
from tinker_actors.services.contract import ModelInfo
from tinker_actors.training.contract import AdamParams, ForwardBackwardResult, LossConfig, OptimStepResult
from tinker_actors.training.custom import forward_backward_custom

if TYPE_CHECKING:
    from tinker_actors.training.custom_loss import CustomLoss

_ROWS = ("weights", "logprobs", "advantages", "reference_logprobs", "returns", "values")

_SEGMENTS: dict[CheckpointKind, str] = {"training": "weights", "sampler": "sampler_weights"}


class LocalTraining:
    """See `Trains`. One call runs at a time, in the order in which they were made.

    Args:
        gateway: Has the trainers and the records.
        record: The model.
        joint: Passes of all models over its base model.
    """

    def __init__(self, gateway: Gateway, record: ModelRecord, joint: JointPasses) -> None:
        self._gateway, self._record, self._joint = gateway, record, joint
        self._engines = gateway.runtime.engines_of(record.base_model)
        self._turn = asyncio.Lock()  # first come, first served
        self._calls = 0
        self.model_id = record.model_id

    async def forward(self, data: Sequence[Datum], loss: LossConfig, *, backward: bool) -> ForwardBackwardResult:
        """A pass over a batch."""
        data = _as_read(data)
        async with self._next():
            if backward:
                found = await self._joint.forward_backward(self.model_id, data, loss)
            else:
                found = await self._engines.trainer.forward(self.model_id, data, loss, every_target=True)
        return _as_sent(found)

    async def custom(self, data: Sequence[Datum], function: object) -> ForwardBackwardResult:
        """A pass whose loss is the caller's."""
        data = _as_read(data)
        async with self._next():
            trainer = self._engines.trainer
            found = await forward_backward_custom(trainer, self.model_id, data, cast("CustomLoss", function))
        return replace(found, logprobs=tuple(single(row) for row in found.logprobs))

    async def optim_step(self, params: AdamParams) -> OptimStepResult:
        """Apply the pending gradients."""
        async with self._next():
            return await self._engines.trainer.optim_step(self.model_id, params)

    async def save_state(self, name: str, *, ttl: int | None, overwrite: bool) -> str:
        """Save all that the training depends on."""
        async with self._next():
            path = self._path("training", name, overwrite=overwrite)
            async with self._storing(name) as handle:
                await self._engines.trainer.save(self.model_id, Handle.parse(handle).name)
                await self._keep("training", path, handle, ttl)
            return path

    async def load_state(self, path: str, *, optimizer: bool) -> None:
        """Put what was saved in the place of the model, as its first call."""
        async with self._next():
            if self._calls > 1:
                raise PolicyError("load_state is only a model's first call; make another model from the checkpoint")
            source = self._gateway.records.checkpoint(LOCAL, path)
            if (source.kind, source.base_model) != ("training", self._record.base_model):
                raise PolicyError(
                    f"{path} is a {source.kind} checkpoint of {source.base_model!r}; a training one of "
                    f"{self._record.base_model!r} is needed"
                )
            await self._engines.trainer.load(source.handle, policy=self.model_id, optimizer=optimizer, replacing=True)
            self._record = replace(self._record, rank=source.rank, parent=path)
            self._gateway.records.models.put(self._record)

    async def save_for_sampler(self, name: str, *, ttl: int | None) -> str:
        """Save the weights under a name."""
        async with self._next():
            path = self._path("sampler", name, overwrite=False)
            async with self._storing() as handle:
                await self._engines.trainer.publish(self.model_id, handle=handle)
                await self._keep("sampler", path, handle, ttl)
            return path

    async def sampler(self) -> LocalSamples:
        """Samples from the weights as they are now."""
        sampler = SamplerRecord(  # by which the weights go with the session
            sampler_id=f"{self._record.session_id}:sample:{secrets.token_hex(8)}",
            tenant=LOCAL.tenant,
            session_id=self._record.session_id,
            base_model=self._record.base_model,
            kind="snapshot",
            created_at=time.time(),
            model_id=self.model_id,
        )
        async with self._next(), self._storing() as handle:
            await self._engines.trainer.publish(self.model_id, handle=handle)
            await self._gateway.checkpoints.put_sampler(sampler, handle)
        return LocalSamples(self._gateway, self._record.base_model, path=None, handle=handle)

    async def info(self) -> ModelInfo:
        """What it is."""
        return ModelInfo(model_id=self.model_id, base_model=self._record.base_model, rank=self._record.rank)

    async def tokenizer(self) -> Tokenizer:
        """The base model's tokenizer."""
        return await asyncio.to_thread(load_tokenizer, self._engines.served.catalogue_name)

    @contextlib.asynccontextmanager
    async def _next(self) -> AsyncIterator[None]:
        self._calls += 1
        self._gateway.records.sessions.update(self._record.session_id, seen_at=time.time())
        async with self._turn:
            yield

    def _path(self, kind: CheckpointKind, name: str, *, overwrite: bool) -> str:
        path = f"tinker://{self.model_id}/{_SEGMENTS[kind]}/{check_name('name', name)}"
        if not overwrite and self._gateway.records.checkpoints.get(path) is not None:
            raise PolicyError(f"{path} exists; choose another name, or overwrite it")
        return path

    def _storing(self, name: str | None = None) -> AbstractAsyncContextManager[str]:
        return self._gateway.checkpoints.storing(self.model_id, self._record.base_model, name=name)

    async def _keep(self, kind: CheckpointKind, path: str, handle: str, ttl: int | None) -> None:
        now = time.time()
        await self._gateway.checkpoints.put(
            CheckpointRecord(
                path=path,
                tenant=LOCAL.tenant,
                model_id=self.model_id,
                kind=kind,
                handle=handle,
                base_model=self._record.base_model,
                rank=self._record.rank,
                created_at=now,
                size=await asyncio.to_thread(self._size, handle),
                expires_at=None if ttl is None else now + ttl,
            )
        )

    def _size(self, handle: str) -> int:
        folder = Path(SnapshotStore(self._gateway.runtime.store).get(handle).path)
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _as_read(data: Sequence[Datum]) -> list[Datum]:
    """The batch as a service reads it: its numbers in single precision.

    Raises:
        DataError: It is empty.
    """
    if not data:
        raise DataError("data is empty; at least one datum is needed")
    return [
        replace(datum, **{name: single(row) for name in _ROWS if (row := getattr(datum, name)) is not None})
        for datum in data
    ]


def _as_sent(found: ForwardBackwardResult) -> ForwardBackwardResult:
    """A result as the protocol sends it: log-probs in single precision, metrics by `name:reduction`."""
    return replace(
        found,
        logprobs=tuple(single(row) for row in found.logprobs),
        metrics=named_metrics(found.metrics),
    )
