"""A service in this process: the actors and the records of a gateway, without HTTP."""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from tinker_actors.client.joint import JointPasses
from tinker_actors.client.local_sampling import LocalSamples
from tinker_actors.client.local_training import LocalTraining
from tinker_actors.errors import ConfigError
from tinker_actors.gateway.caller import LOCAL
from tinker_actors.gateway.gateway import Gateway
from tinker_actors.gateway.record_kinds import ModelRecord, SessionRecord
from tinker_actors.gateway.runtime import Runtime, ServedModel
from tinker_actors.gateway.tinker.models import ALPHA
from tinker_actors.policies import PolicySpec, Role
from tinker_actors.services.contract import Capabilities, NewModel, SupportedModel


class LocalService:
    """See `Service`. What it makes belongs to the local tenant, as on a gateway without keys.

    Args:
        models: The base models.
        root: Folder of all that is kept.
        in_process: Whether the engines run in this process.

    Raises:
        ConfigError: No model is named.
    """

    def __init__(self, models: Sequence[str | ServedModel], root: str | Path, *, in_process: bool) -> None:
        if not models:
            raise ConfigError("no model is named; the name of at least one base model is needed")
        served = [ServedModel(name=model) if isinstance(model, str) else model for model in models]
        self._runtime = Runtime(root, served, in_process=in_process)
        self._gateway = Gateway(runtime=self._runtime)
        self._session = str(uuid.uuid4())
        self._models = 0
        self._joint: dict[str, JointPasses] = {}
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        """Start the actors."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._runtime)
            await stack.enter_async_context(self._gateway)
            now = time.time()
            self._gateway.records.sessions.put(
                SessionRecord(session_id=self._session, tenant=LOCAL.tenant, created_at=now, seen_at=now)
            )
            self._stack = stack.pop_all()

    async def stop(self, error: BaseException | None) -> None:
        """End them."""
        ended = "success" if error is None else "errored"
        async with self._stack:
            self._gateway.records.sessions.update(self._session, ended_at=time.time(), ended=ended)
            await self._gateway.checkpoints.end_session(self._session)

    async def capabilities(self) -> Capabilities:
        """The base models."""
        found = [
            SupportedModel(model_name=model.name, max_context_length=await self._runtime.context_length(model.name))
            for model in self._runtime.models
        ]
        return Capabilities(supported_models=tuple(found))

    async def create(self, model: NewModel) -> LocalTraining:
        """Make a model."""
        engines = self._runtime.engines_of(model.base_model)
        roles: dict[Role, bool] = {
            "attention": model.train_attn,
            "mlp": model.train_mlp,
            "unembed": model.train_unembed,
        }
        if not any(roles.values()):
            raise ConfigError("train_attn, train_mlp and train_unembed are all false; at least one is needed")
        record = self._record(model.base_model, rank=model.rank, user_metadata=model.user_metadata)
        await engines.trainer.create(
            PolicySpec(
                base_model=engines.served.catalogue_name,
                name=record.model_id,
                rank=model.rank,
                alpha=ALPHA,
                targets=tuple(role for role, wanted in roles.items() if wanted),
                seed=secrets.randbits(31) if model.seed is None else model.seed,
            )
        )
        return self._kept(record)

    async def restore(self, path: str, *, optimizer: bool, user_metadata: Mapping[str, str]) -> LocalTraining:
        """Make a model that goes on from a checkpoint."""
        source = self._gateway.records.checkpoint(LOCAL, path)
        source.check_legible()
        trainer = self._runtime.engines_of(source.base_model).trainer
        record = self._record(source.base_model, rank=source.rank, user_metadata=user_metadata, parent=path)
        if source.kind == "training":
            await trainer.load(source.handle, policy=record.model_id, optimizer=optimizer)
        elif optimizer:
            raise ConfigError(f"{path} holds weights alone; one of save_state has the optimizer's state, too")
        else:
            await trainer.fork(source.handle, policy=record.model_id)
        return self._kept(record)

    async def sampler(self, *, path: str | None, base_model: str | None) -> LocalSamples:
        """What samples from a snapshot or a base model."""
        if path is None:
            assert base_model is not None
            self._runtime.engines_of(base_model)
            return LocalSamples(self._gateway, base_model, path=None, handle=None)
        found = self._gateway.records.checkpoint(LOCAL, path)
        if found.kind != "sampler":
            raise ConfigError(f"{path} is a {found.kind} checkpoint; one of save_weights_for_sampler is needed")
        return LocalSamples(self._gateway, found.base_model, path=path, handle=found.handle)

    def _record(
        self, base_model: str, *, rank: int, user_metadata: Mapping[str, Any], parent: str | None = None
    ) -> ModelRecord:
        now = time.time()
        number, self._models = self._models, self._models + 1
        return ModelRecord(
            model_id=f"{self._session}:train:{number}",
            tenant=LOCAL.tenant,
            session_id=self._session,
            base_model=base_model,
            rank=rank,
            optimizer="adamw",
            created_at=now,
            used_at=now,
            user_metadata=user_metadata,
            parent=parent,
        )

    def _kept(self, record: ModelRecord) -> LocalTraining:
        self._gateway.records.models.put(record)
        if record.base_model not in self._joint:
            self._joint[record.base_model] = JointPasses(self._runtime.engines_of(record.base_model).trainer)
        return LocalTraining(self._gateway, record, self._joint[record.base_model])
