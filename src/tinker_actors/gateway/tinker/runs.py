"""All models in training: they come with `create_model` or `load_weights`, and go with their session."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from tinker_actors.errors import TinkerActorsError
from tinker_actors.gateway.caller import Caller
from tinker_actors.gateway.futures import Future, Futures
from tinker_actors.gateway.record_kinds import CheckpointRecord, ModelRecord
from tinker_actors.gateway.records import LIVING, Records
from tinker_actors.gateway.refusals import RefusalError, not_found
from tinker_actors.gateway.runtime import Runtime
from tinker_actors.gateway.tinker.commands import MOST_TOKENS, Action, Command, Pass
from tinker_actors.gateway.tinker.executor import Executor, LiveModel

logger = logging.getLogger(__name__)

_EVERY = 20.0
"""Seconds between looks at what has to end."""


class TrainingRuns:
    """The models in training of all tenants.

    Args:
        runtime: The trainers.
        records: What is remembered of models and sessions.
        futures: Where answers go.
        ended: Told of each session that has ended, once its models are free.
        session_life: Seconds without a word of its client after which a session ends, and its models with it.
        models_of_tenant: Models that a tenant may have in training at once.
        patience: Seconds that commands wait for one that should have come before them.
    """

    def __init__(
        self,
        runtime: Runtime,
        records: Records,
        futures: Futures,
        *,
        ended: Callable[[str], Awaitable[None]],
        session_life: float = 1800.0,
        models_of_tenant: int = 64,
        patience: float = 600.0,
    ) -> None:
        self._runtime, self._records, self._futures = runtime, records, futures
        self._session_life, self._patience, self._ended = session_life, patience, ended
        self._models_of_tenant = models_of_tenant
        self._executors = {
            name: Executor(engines.trainer, futures, self._lost) for name, engines in runtime.engines.items()
        }

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run commands while the block lasts, and end what is over."""
        for record in self._records.models.where("freed_at IS NULL"):  # the service was started anew
            self._records.models.update(record.model_id, freed_at=time.time())
        tasks = [asyncio.create_task(executor.run()) for executor in self._executors.values()]
        tasks.append(asyncio.create_task(self._watch()))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            for found in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(found, Exception):
                    raise found

    def begin(self, record: ModelRecord, kind: str, create: Action) -> str:
        """Make a model with its first command.

        Args:
            record: What is remembered of it once `create` succeeded.
            kind: The command's name.
            create: Makes its policy.

        Returns:
            The command's request id; the same one if the model was begun before.

        Raises:
            RefusalError: The tenant has too many models in training.
        """
        executor = self._executors[record.base_model]
        live = executor.models.get(record.model_id)
        if live is not None and (known := live.log.repeated(0)) is not None:
            return known
        self._check_place(record.tenant)
        live = LiveModel(record.model_id, tenant=record.tenant, session_id=record.session_id)
        executor.models[record.model_id] = live

        async def action():
            try:
                answer = await create()
            except BaseException as error:  # a model that a cancelled command didn't make is lost too
                live.lost = RefusalError(400, f"model {record.model_id!r} was not made: {error}", code="no_model")
                executor.drop(live, live.lost)
                executor.models.pop(record.model_id, None)
                raise
            self._records.models.put(record)
            return answer

        return self._add(executor, live, kind, 0, action)

    def submit(self, caller: Caller, model_id: str, kind: str, seq_id: int | None, work: Pass | Action) -> str:
        """Give a model a command, and return its request id: of the same command always the same one.

        Raises:
            RefusalError: There is no such model of the caller's, or the command can't be taken.
        """
        found = self._find(caller, model_id)
        if found is None:
            record = self._records.model(caller, model_id)
            future = self._futures.open(record.tenant, kind)
            self._futures.fail(future, self._gone(record))
            return future.request_id
        executor, live = found
        seq_id = live.log.next_id if seq_id is None else seq_id
        if (known := live.log.repeated(seq_id)) is not None:
            return known
        if isinstance(work, Pass):
            self._check_room(live, seq_id)
        return self._add(executor, live, kind, seq_id, work)

    def _check_place(self, tenant: str) -> None:
        models = (live for executor in self._executors.values() for live in executor.models.values())
        held = sum(live.tenant == tenant for live in models)
        if held >= self._models_of_tenant:
            raise RefusalError(
                429,
                f"tenant {tenant!r} has {held} models in training; at most {self._models_of_tenant} may be: finish a "
                "session that isn't needed any more",
                code="too_many_models",
                headers={"Retry-After": "30"},
            )

    def _check_room(self, live: LiveModel, seq_id: int) -> None:
        """Refuse a batch while too many wait; one that others wait for has to come, or they would never go."""
        logs = [
            other.log
            for executor in self._executors.values()
            for other in executor.models.values()
            if other.tenant == live.tenant
        ]
        waiting = sum(log.tokens for log in logs)
        if waiting >= MOST_TOKENS and not (live.log.is_due(seq_id) and live.log.gap is not None):
            detail = f"batches of {waiting} positions wait already; {MOST_TOKENS} may, over all models of a tenant"
            raise RefusalError(429, detail, code="too_many_tokens", headers={"Retry-After": "1"})

    def known(self, caller: Caller, model_id: str, seq_id: int | None) -> str | None:
        """The request id of a command that was given before, so that it need not be read again."""
        found = self._find(caller, model_id)
        return None if found is None or seq_id is None else found[1].log.repeated(seq_id)

    def is_first(self, caller: Caller, model_id: str, seq_id: int | None) -> bool:
        """Whether a command would be the first after the one that made its model."""
        found = self._find(caller, model_id)
        return found is not None and (found[1].log.next_id if seq_id is None else seq_id) == 1

    def last_checkpoint(self, model_id: str) -> CheckpointRecord | None:
        """The newest checkpoint that a model's training can go on from."""
        now = time.time()
        condition = f"model_id = ? AND kind = 'training' AND {LIVING}"
        found = self._records.checkpoints.where(condition, model_id, now, order="created_at DESC", limit=1)
        return found[0] if found else None

    async def end_session(self, session_id: str) -> None:
        """Free the models of a session that is over."""
        for executor in self._executors.values():
            for live in [live for live in executor.models.values() if live.session_id == session_id]:
                await self._free(executor, live)
        await self._ended(session_id)

    def _find(self, caller: Caller, model_id: str) -> tuple[Executor, LiveModel] | None:
        for executor in self._executors.values():
            if (live := executor.models.get(model_id)) is not None:
                if live.tenant != caller.tenant and not caller.sees_all:
                    raise not_found("model", model_id)
                return executor, live
        return None

    def _add(self, executor: Executor, live: LiveModel, kind: str, seq_id: int, work: Pass | Action) -> str:
        future: Future = self._futures.open(live.tenant, kind)
        now = time.time()
        if now - live.used_at > 1:
            self._records.models.update(live.model_id, used_at=now)
            live.used_at = now
        live.log.add(Command(seq_id=seq_id, future=future, work=work))
        if live.lost is not None:
            executor.lose(live)
        executor.wake()
        return future.request_id

    def _lost(self, model_id: str) -> RefusalError:
        """For commands after a model's training state was lost with the process that held it."""
        return RefusalError(
            503,
            f"the training state of model {model_id!r} was lost with the process that held it; "
            f"{self._advice(model_id)}",
            code="model_lost",
        )

    def _gone(self, record: ModelRecord) -> RefusalError:
        """For commands to a model that isn't in training any longer."""
        session = self._records.sessions.get(record.session_id)
        if session is None or session.ended_at is None:
            return self._lost(record.model_id)
        return RefusalError(
            404,
            f"model {record.model_id!r} went with its session, which has ended ({session.ended}); "
            f"{self._advice(record.model_id)}",
            code="session_ended",
        )

    def _advice(self, model_id: str) -> str:
        checkpoint = self.last_checkpoint(model_id)
        if checkpoint is None:
            return "it had saved no checkpoint, so training begins anew"
        return f"create a training client from its last checkpoint, {checkpoint.path}"

    async def _free(self, executor: Executor, live: LiveModel) -> None:
        executor.models.pop(live.model_id, None)
        self._records.models.update(live.model_id, freed_at=time.time())
        if (record := self._records.models.get(live.model_id)) is not None:
            executor.drop(live, self._gone(record))
        with contextlib.suppress(TinkerActorsError):  # the policy went before
            await executor.trainer.delete(live.model_id)

    async def _watch(self) -> None:
        """End what is over, from time to time."""
        while True:
            await asyncio.sleep(_EVERY)
            try:
                await self.look()
            except Exception:  # the boundary of a task that nobody waits for: it goes on
                logger.exception("looking after sessions failed")

    async def look(self) -> None:
        """End sessions that nothing is heard of, free their models, and stop waiting for commands that never came."""
        self._futures.tidy()
        now = time.time()
        for session in self._records.sessions.where("ended_at IS NULL AND seen_at < ?", now - self._session_life):
            self._records.sessions.update(session.session_id, ended_at=now, ended="expired")
            await self.end_session(session.session_id)
        for executor in self._executors.values():
            for live in list(executor.models.values()):
                self._skip_gap(live)
                session = self._records.sessions.get(live.session_id)
                if session is None or session.ended_at is not None:
                    await self._free(executor, live)

    def _skip_gap(self, live: LiveModel) -> None:
        gap = live.log.gap
        if gap is None or time.monotonic() - gap[1] < self._patience:
            return
        why = RefusalError(400, f"the model's command with seq_id {gap[0]} never came", code="missing_command")
        for command in live.log.skip_gap():
            self._futures.fail(command.future, why)
