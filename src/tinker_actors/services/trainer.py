"""The trainer actor of a run that trains at a remote Tinker service."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, TypeVar

from tinker_actors.actors import Actor
from tinker_actors.data import Datum
from tinker_actors.errors import ConfigError, NotInTrainingError, PolicyError, SamplingError
from tinker_actors.models.catalogue import resolve
from tinker_actors.policies import Handle, HandleKind, Manifest, Origin, PolicySpec, Snapshot, SnapshotStore
from tinker_actors.policies.at_service import path_at_service, write_path
from tinker_actors.policies.handles import check_id
from tinker_actors.services.batches import computed_here, result_here, sendable
from tinker_actors.services.futures import LoopThread
from tinker_actors.services.reaching import check_service
from tinker_actors.services.remote import RemoteService, RemoteTraining
from tinker_actors.services.trainer_settings import TinkerTrainerSettings, new_model
from tinker_actors.training.contract import AdamParams, ForwardBackwardResult, LossConfig, OptimStepResult
from tinker_actors.training.custom_loss import SUPERVISED_PASS, scorable

T = TypeVar("T")

_KINDS: tuple[HandleKind, ...] = ("sampler_weights", "weights")
_PATIENCE = 2.0
"""Seconds for what is deleted at the end; a service that is gone is asked for minutes."""

_LOG = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class _Model:
    """A policy in training.

    Attributes:
        training: Its model at the service.
        spec: What it was made from.
        step: Optimizer steps behind it.
        parent: Handle that its next snapshot's weights grow from.
        published: How often this model's weights were published.
    """

    training: RemoteTraining
    spec: PolicySpec
    step: int = 0
    parent: str | None = None
    published: int = 0


class TinkerTrainer(Actor):
    """Answers as `Trainer` does to what a run asks, by a remote Tinker service; needs the extra `tinker`.

    Weights and optimizer states stay at the service. What a snapshot or checkpoint is in the store here is the path by
    which the service knows it; what has left the store is deleted at the service at the next such occasion, or the end.
    Batches are computed as this package's trainer does: by the service's loss of the same name where that gives the
    same gradient, else, in two passes, as a loss of the run's own over the service's log-probs.

    Args:
        base_model: The base model's name here.
        store: Folder or URL of the snapshot store.
        settings: Which service.

    Raises:
        ConfigError: The extra isn't installed, or the key isn't in the environment.
    """

    def __init__(self, *, base_model: str, store: str, settings: TinkerTrainerSettings) -> None:
        self._settings, self._base_model = settings, base_model
        self._service = RemoteService(
            settings.address, settings.api_key(), tokenizers={}, takes_masks=settings.extended
        )
        self._store = SnapshotStore(store)
        self._thread = LoopThread("tinker trainer")
        self._models: dict[str, _Model] = {}
        self._kept: dict[str, str] = {}

    async def on_start(self) -> None:
        """Find the service; the session begins with the first policy.

        Raises:
            ConfigError: It can't be reached, refuses the key, or hasn't the base model.
        """
        await asyncio.to_thread(check_service, self._settings, self._base_model)
        self._kept = await asyncio.to_thread(self._all_kept)
        await self._there(self._service.start())

    async def on_stop(self) -> None:
        """Finish the session; what was saved stays."""
        async with contextlib.AsyncExitStack() as ends:
            ends.push_async_callback(asyncio.to_thread, self._thread.end)
            ends.push_async_callback(self._finish)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE):
                    await self._drop_gone()

    async def create(self, spec: PolicySpec) -> str:
        """Make a policy and return its id.

        Raises:
            ConfigError: The protocol has no field for what it is made from, or it has no name.
            PolicyError: The id is taken.
        """
        if spec.name is None:
            raise ConfigError("name is None; a policy that a service trains needs an id")
        if spec.name in self._models:
            raise PolicyError(f"policy {spec.name!r} is in training; choose another name")
        model = new_model(spec, self._settings.base_model or resolve(spec.base_model).name)
        self._models[spec.name] = _Model(training=await self._there(self._service.create(model)), spec=spec)
        return spec.name

    async def delete(self, policy: str) -> None:
        """Let go of a policy; the service frees it with the session."""
        self._model(policy)
        del self._models[policy]

    async def forward_backward(self, policy: str, datums: Sequence[Datum], loss: LossConfig) -> ForwardBackwardResult:
        """Add the gradient of the summed loss to the policy's pending gradients.

        Raises:
            NotInTrainingError: No policy of this id is in training here.
            DataError: The protocol has no field for something that a datum says.
            InvalidRequestError: The service refuses the batch.
            EngineDiedError: It can't be reached.
            SamplingError: It failed.
        """
        (result,) = await self.forward_backward_many([(policy, datums, loss)])
        return result

    async def forward_backward_many(
        self, batches: Sequence[tuple[str, Sequence[Datum], LossConfig]]
    ) -> tuple[ForwardBackwardResult, ...]:
        """As `forward_backward` for several policies, once each, at the same time."""
        models = [self._model(policy) for policy, _, _ in batches]
        rows = zip(models, batches, strict=True)
        passes = [partial(self._pass, model.training, datums, loss) for model, (_, datums, loss) in rows]
        try:
            async with asyncio.TaskGroup() as tasks:
                under_way = [tasks.create_task(self._there(one())) for one in passes]
        except ExceptionGroup as failures:
            first = failures.exceptions[0]
            raise first from first.__cause__
        return tuple(task.result() for task in under_way)

    async def forward(
        self, policy: str, datums: Sequence[Datum], loss: LossConfig, *, every_target: bool = False
    ) -> ForwardBackwardResult:
        """Loss and log-probs without gradients; with `every_target` log-probs of untrained targets too."""
        training = self._model(policy).training
        found = await self._there(training.forward(scorable(datums), SUPERVISED_PASS, backward=False))
        extended = self._settings.extended
        return await asyncio.to_thread(result_here, datums, loss, found, extended=extended, every_target=every_target)

    async def optim_step(self, policy: str, params: AdamParams) -> OptimStepResult:
        """Apply the pending gradients, and drop them.

        Raises:
            ConfigError: The settings are for another optimizer than AdamW.
        """
        model = self._model(policy)
        done = await self._there(model.training.optim_step(params))
        model.step += 1
        return replace(done, step=model.step)

    async def publish(self, policy: str, *, ttl: float | None = None) -> Snapshot:
        """Have the service keep the present weights for its samplers, as the policy's next snapshot."""
        model = self._model(policy)
        name = f"{model.published + 1:04d}-step-{model.step:06d}"
        seconds = None if ttl is None else math.ceil(ttl)
        path = await self._there(model.training.save_for_sampler(name, ttl=seconds))
        model.published += 1
        snapshot = await self._keep(path, partial(self._store.publish, policy, origin=_origin(model), ttl=ttl))
        model.parent = snapshot.handle
        return snapshot

    async def save(self, policy: str, name: str) -> str:
        """Have the service keep the whole training state; its handle in the store here.

        Raises:
            PolicyError: The name is taken or not valid.
        """
        model = self._model(policy)
        await asyncio.to_thread(self._store.check_free, policy, name)  # the service would overwrite it
        path = await self._there(model.training.save_state(name, ttl=None, overwrite=True))
        stored = await self._keep(path, partial(self._store.checkpoint, policy, name, origin=_origin(model)))
        return stored.handle

    async def load(
        self, handle: str, *, policy: str | None = None, optimizer: bool = True, store: str | None = None
    ) -> str:
        """Go on from a checkpoint at the service, as the policy that was saved or as a new one; the policy's id.

        Args:
            handle: What `save` returned.
            policy: The id of a new policy that starts from it; None for the policy that was saved.
            optimizer: Whether the optimizer's moments, and the step, come back too.
            store: Folder of another store that has the handle; None for the actor's own.

        Raises:
            UnknownPolicyError: The store has no such checkpoint, or the service doesn't have it any more.
            PolicyError: The checkpoint lies in the store itself, and not at a service.
        """
        source = self._store if store is None else SnapshotStore(store)
        stored, path = await asyncio.to_thread(_stored, source, handle)
        name = Handle.parse(handle).policy_id if policy is None else check_id("policy id", policy)
        spec = PolicySpec.from_plain(stored.spec or {"base_model": stored.base_model})
        restoring = self._service.restore(path, optimizer=optimizer, user_metadata={"policy": name})
        training = await self._there(restoring)
        self._models[name] = _Model(
            training=training,
            spec=replace(spec, name=name),
            step=stored.step if optimizer else 0,
            parent=handle,
        )
        return name

    async def fork(self, handle: str, *, policy: str | None = None, store: str | None = None) -> str:
        """Make a new policy that starts cold from a checkpoint's weights; see `load`."""
        if policy is None:
            raise ConfigError("policy is None; a policy that a service trains needs an id")
        return await self.load(handle, policy=policy, optimizer=False, store=store)

    async def _pass(self, training: RemoteTraining, datums: Sequence[Datum], loss: LossConfig) -> ForwardBackwardResult:
        extended = self._settings.extended
        sent = sendable(datums, loss, extended=extended)
        if sent is None:
            found = await training.custom(datums, computed_here(loss))
        else:
            found = await training.forward(*sent, backward=True)
        return await asyncio.to_thread(result_here, datums, loss, found, extended=extended)

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        """Do work on the client's own thread and loop, which its calls may block."""
        return await self._thread.call(work)

    async def _finish(self) -> None:
        with contextlib.suppress(SamplingError):  # the service may be gone
            await self._there(self._service.stop(None))

    async def _keep(self, path: str, store: Callable[..., Snapshot]) -> Snapshot:
        """Store where something lies at the service, and delete there what has left the store, or doesn't get in."""
        try:
            stored = await asyncio.to_thread(store, write=partial(write_path, path))
        except Exception:  # whatever it was, nothing here names what lies there
            with contextlib.suppress(SamplingError):  # why it isn't stored matters more
                await self._there(self._service.discard(path))
            raise
        self._kept[stored.handle] = path
        await self._drop_gone()
        return stored

    async def _drop_gone(self) -> None:
        for gone in await asyncio.to_thread(self._gone):
            try:
                await self._there(self._service.discard(self._kept.pop(gone)))
            except SamplingError as error:  # the run can do without
                _LOG.warning("%s left the store and could not be deleted at the service: %s", gone, error)

    def _gone(self) -> list[str]:
        policies = {Handle.parse(handle).policy_id for handle in self._kept}
        there = {handle for policy in policies for kind in _KINDS for handle in self._store.handles(policy, kind)}
        return [handle for handle in self._kept if handle not in there]

    def _all_kept(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for policy in self._store.policies():
            for snapshot in [entry for kind in _KINDS for entry in self._store.list(policy, kind)]:
                if (path := path_at_service(self._store, snapshot)) is not None:
                    found[snapshot.handle] = path
        return found

    def _model(self, policy: str) -> _Model:
        if (model := self._models.get(policy)) is None:
            raise NotInTrainingError(f"policy {policy!r} is not in training here; {sorted(self._models)} are")
        return model


def _origin(model: _Model) -> Origin:
    return Origin(step=model.step, base_model=model.spec.base_model, parent=model.parent, spec=asdict(model.spec))


def _stored(store: SnapshotStore, handle: str) -> tuple[Manifest, str]:
    """What a checkpoint's manifest says, and where it lies at the service.

    Raises:
        PolicyError: It isn't at a service.
    """
    Handle.parse(handle, kind="weights")
    stored = store.manifest(handle)
    if (path := path_at_service(store, store.get(handle))) is None:
        raise PolicyError(
            f"{handle} of {store.root} was trained here; a Tinker service goes on only from what was trained there"
        )
    return stored, path
