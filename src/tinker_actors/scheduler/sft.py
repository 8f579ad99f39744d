"""Supervised fine-tuning as a job: epochs over written conversations, from its configuration to its summary."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, replace
from itertools import islice

from tinker_actors.actors import Mesh
from tinker_actors.algorithms.aggregation import Aggregation, factors
from tinker_actors.data import Datum
from tinker_actors.errors import ConfigError
from tinker_actors.policies import Retention, SnapshotStore
from tinker_actors.scheduler.observer import Phase, RunObserver, SftSummary
from tinker_actors.scheduler.run_folder import RunFolder, write_atomically
from tinker_actors.scheduler.sft_config import SftConfig
from tinker_actors.scheduler.sft_data import ChatData
from tinker_actors.scheduler.sft_plan import Cursor, StepPlan
from tinker_actors.scheduler.sft_prepare import Prepared, check_sft, prepare
from tinker_actors.scheduler.sft_state import Best, SftState, load_sft_state, save_sft_state
from tinker_actors.scheduler.starts import begin, spec_of
from tinker_actors.scheduler.stopping import StopRequest
from tinker_actors.scheduler.training_place import spawn_trainer
from tinker_actors.telemetry import JsonlWriter, plot_losses, read_jsonl
from tinker_actors.training import ForwardBackwardResult, LossConfig, TrainsPolicies

POLICY = "policy"
"""The id of a run's policy."""

_LOSS = LossConfig(name="cross_entropy")
_EVALUATED_AT_ONCE = 16  # examples
_PLOT_EVERY = 2.0  # seconds


async def run_sft(
    config: SftConfig, folder: RunFolder, observer: RunObserver, stop: StopRequest | None = None
) -> SftSummary:
    """Run a supervised job in its folder. A folder with a saved state goes on from there.

    Raises:
        ConfigError: Data or the model can't be loaded, or the data is not what the saved state was trained on.
        DataError: Lines are bad and not to be skipped, or there is nothing to learn from; names them.
    """
    check_sft(config)
    observer.phase(Phase.START, 0, 0)
    state = load_sft_state(folder)
    folder.sweep()
    folder.forget_after(state.step if state else -1)
    data = await prepare(config, folder, observer)
    with JsonlWriter(folder.metrics) as metrics, JsonlWriter(folder.examples) as examples:
        async with Mesh(nodes=1, name=config.name) as mesh:
            trainer = await spawn_trainer(
                mesh,
                config.trainer,
                base_model=config.model.name,
                store=str(folder.policies),
                device=config.model.device,
            )
            job = _Sft(config, folder, observer, data, trainer, metrics, examples, stop or StopRequest())
            summary = await job.run(state)
    observer.phase(Phase.END, summary.steps, summary.steps)
    observer.finished(summary, folder.root)
    return summary


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A step with its datums; those of an example share a scale."""

    plan: StepPlan
    batches: tuple[tuple[Datum, ...], ...]


class _Sft:
    """The course of one run."""

    def __init__(
        self,
        config: SftConfig,
        folder: RunFolder,
        observer: RunObserver,
        data: Prepared,
        trainer: TrainsPolicies,
        metrics: JsonlWriter,
        examples: JsonlWriter,
        stop: StopRequest,
    ) -> None:
        self._config, self._folder, self._observer = config, folder, observer
        self._data, self._trainer = data, trainer
        self._metrics, self._examples = metrics, examples
        self._stop = stop
        self._store = SnapshotStore(folder.policies)
        self._began, self._spent, self._plotted = time.monotonic(), 0.0, 0.0
        self._total = 0

    async def run(self, state: SftState | None) -> SftSummary:
        """From the start, or from a saved state, to the end."""
        done, cursor = (state.step, state.cursor) if state else (0, Cursor())
        planned = done + self._data.plan.count(cursor)
        self._total = max(done, min(self._config.trainer.steps or planned, planned))
        self._observer.started(self._config.name, self._folder.root, self._total, done)
        state = await (self._begin() if state is None else self._resume(state))
        plans = islice(self._data.plan.steps(cursor), self._total - done)
        async with aclosing(_loaded(self._data.train, plans, self._config.trainer.aggregation)) as steps:
            async for loaded in steps:
                if self._reached(state):
                    break
                state = await self._step(state, loaded)
        return await self._finish(state)

    async def _begin(self) -> SftState:
        config = self._config
        self._folder.discard_unfinished_start()
        spec = spec_of(config.policy, config.model.name, seed=config.seed, name=POLICY)
        await begin(self._trainer, config.policy, spec)
        state = await self._evaluated(SftState(digest=self._data.train.digest))
        return await self._save(replace(state, eval_before=state.eval_last))

    async def _resume(self, state: SftState) -> SftState:
        if state.digest != self._data.train.digest:
            raise ConfigError(
                f"{', '.join(self._config.data.train)} gives other examples than those that {self._folder.root} was "
                "trained on up to now; restore the data and its settings, or start a new run"
            )
        self._spent = state.seconds
        kept = self._store.get(state.checkpoint)
        for checkpoint in self._store.list(POLICY, "weights"):
            if checkpoint.number > kept.number:
                self._store.delete(checkpoint.handle)
        for snapshot in self._store.list(POLICY):
            if snapshot.step > state.step:
                self._store.delete(snapshot.handle)
        await self._trainer.load(state.checkpoint)
        return state

    async def _step(self, state: SftState, loaded: _Loaded) -> SftState:
        step, config = state.step + 1, self._config
        self._observer.phase(Phase.UPDATE, step, self._total)
        self._record(step, loaded, await self._update(step, loaded))
        state = replace(state, step=step, cursor=loaded.plan.after, eval_last=None)
        last = step == self._total
        if last or (config.evaluation.every and step % config.evaluation.every == 0):
            state = await self._evaluated(state)
        is_best = state.best is not None and state.best.step == step
        ends, stopping = last or self._reached(state), self._stop.asked
        if ends or is_best or stopping or step % config.checkpoints.every == 0:
            state = await self._save(state)
        if self._reached(state) and not last:
            self._observer.note(f"evaluation.stop_at is reached after step {step}: training ends here")
        await self._plot_now_and_then()
        if stopping and not ends:
            await self._stop.halt()
        return state

    async def _update(self, step: int, loaded: _Loaded) -> dict[str, float]:
        began = time.monotonic()
        losses: list[float] = []
        tokens = 0
        for batch in loaded.batches:
            result = await self._trainer.forward_backward(POLICY, batch, _LOSS)
            loss, count = _summed(batch, result)
            losses.append(loss)
            tokens += count
        params = self._config.trainer.params_at(step, self._total)
        done = await self._trainer.optim_step(POLICY, params)
        seconds = time.monotonic() - began
        read = sum(len(datum) for batch in loaded.batches for datum in batch)
        return {
            "loss": math.fsum(losses) / tokens,
            "tokens": float(tokens),
            "tokens_read": float(read),
            "learning_rate": params.learning_rate,
            **({} if math.isnan(done.grad_norm) else {"grad_norm": done.grad_norm}),
            "tokens_per_second": read / max(seconds, 1e-9),
            "seconds": seconds,
        }

    async def _evaluated(self, state: SftState) -> SftState:
        """The state with the loss per token on what is held out, if there is anything."""
        data, held = self._data.evaluation, self._data.held
        if not held:
            return state
        self._observer.phase(Phase.EVALUATION, state.step, self._total)
        losses: list[float] = []
        tokens = 0
        for start in range(0, len(held), _EVALUATED_AT_ONCE):
            part = held[start : start + _EVALUATED_AT_ONCE]
            datums = await asyncio.to_thread(_datums, data, part)
            loss, count = _summed(datums, await self._trainer.forward(POLICY, datums, _LOSS))
            losses.append(loss)
            tokens += count
            self._observer.progress(start + len(part), len(held))
        loss = math.fsum(losses) / tokens
        record = {"step": state.step, "kind": "evaluation", "loss": loss, "tokens": tokens, "examples": len(held)}
        self._metrics.write(record)
        self._observer.evaluated(state.step, loss, "loss")
        best = state.best if state.best and state.best.loss <= loss else Best(step=state.step, loss=loss)
        return replace(state, eval_last=loss, best=best)

    async def _save(self, state: SftState) -> SftState:
        """Save and publish, then drop what is old; the best is kept."""
        self._observer.phase(Phase.SAVE, state.step, self._total)
        handle = await self._trainer.save(POLICY, f"step-{state.step:06d}")
        snapshot = (await self._trainer.publish(POLICY)).handle
        best = state.best
        if best and best.step == state.step:
            best = replace(best, checkpoint=handle, snapshot=snapshot)
        saved = replace(state, checkpoint=handle, best=best, seconds=self._seconds())
        save_sft_state(self._folder, saved)
        keep = self._config.checkpoints
        handles = (best.checkpoint, best.snapshot) if best else ()
        self._store.expire(POLICY, Retention(keep_last=keep.keep), kind="weights", in_use=handles)
        self._store.expire(POLICY, keep.retention(), in_use=handles)
        return saved

    def _record(self, step: int, loaded: _Loaded, metrics: dict[str, float]) -> None:
        plan, data = loaded.plan, self._data.train
        share = plan.after.position / len(self._data.plan.kept)
        metrics = {**metrics, "examples": float(len(plan.examples)), "epoch": plan.after.epoch + share}
        self._metrics.write({"step": step, "kind": "step", **metrics})
        names = [data.where(data.examples.rows[example]) for example in plan.examples]
        self._examples.write({"step": step, "epoch": plan.epoch + 1, "examples": names})
        self._observer.step(step, metrics)

    def _reached(self, state: SftState) -> bool:
        target = self._config.evaluation.stop_at
        return target is not None and state.eval_last is not None and state.eval_last <= target

    async def _plot_now_and_then(self) -> None:
        if time.monotonic() - self._plotted > _PLOT_EVERY:
            await asyncio.to_thread(self._plot)
            self._plotted = time.monotonic()

    def _plot(self) -> None:
        records = read_jsonl(self._folder.metrics)
        plot_losses(
            self._folder.loss_plot,
            title=self._config.name,
            losses=[(record["step"], record["loss"]) for record in records if record["kind"] == "step"],
            evaluations=[(record["step"], record["loss"]) for record in records if record["kind"] == "evaluation"],
        )

    async def _finish(self, state: SftState) -> SftSummary:
        records = [record for record in read_jsonl(self._folder.metrics) if record["kind"] == "step"]
        summary = SftSummary(
            loss_first=records[0]["loss"] if records else None,
            loss_last=records[-1]["loss"] if records else None,
            eval_before=state.eval_before,
            eval_after=state.eval_last,
            eval_best=state.best.loss if state.best else None,
            best=state.best.snapshot if state.best else None,
            steps=state.step,
            examples=sum(int(record["examples"]) for record in records),
            tokens=sum(int(record["tokens"]) for record in records),
            skipped=len(self._data.skipped),
            seconds=round(self._seconds(), 2),
        )
        await asyncio.to_thread(self._plot)
        write_atomically(self._folder.summary, json.dumps(asdict(summary), indent=1) + "\n")
        return summary

    def _seconds(self) -> float:
        return self._spent + time.monotonic() - self._began


async def _loaded(data: ChatData, plans: Iterable[StepPlan], aggregation: Aggregation) -> AsyncGenerator[_Loaded]:
    """The steps with their datums; the next one's are read while a step is trained."""
    pending: deque[asyncio.Task[_Loaded]] = deque()
    try:
        for plan in plans:
            pending.append(asyncio.create_task(asyncio.to_thread(_load, data, plan, aggregation)))
            if len(pending) > 1:
                yield await pending.popleft()
        while pending:
            yield await pending.popleft()
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


def _load(data: ChatData, plan: StepPlan, aggregation: Aggregation) -> _Loaded:
    """A step's datums, scaled so that the summed loss of all its batches is the mean over tokens or examples."""
    lengths = [data.examples.trained[example] for example in plan.examples]
    scales = dict(zip(plan.examples, factors(aggregation, lengths), strict=True))
    batches = tuple(
        tuple(replace(datum, scale=scales[example]) for example in batch for datum in data.datums(example))
        for batch in plan.batches
    )
    return _Loaded(plan, batches)


def _datums(data: ChatData, examples: Sequence[int]) -> tuple[Datum, ...]:
    return tuple(datum for example in examples for datum in data.datums(example))


def _summed(datums: Sequence[Datum], result: ForwardBackwardResult) -> tuple[float, int]:
    """The unscaled loss over the trained tokens of some datums, and their number."""
    rows = [
        [-logprob for logprob, weight in zip(row, datum.weights or (), strict=True) if weight]
        for datum, row in zip(datums, result.logprobs, strict=True)
    ]
    return math.fsum(entry for row in rows for entry in row), sum(map(len, rows))
