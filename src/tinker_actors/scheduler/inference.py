"""Inference as a job: each prompt of a data set through one snapshot, into a line of `replies.jsonl`.

A run that was interrupted goes on after the last line that it wrote. The prompts that are answered together are the
same then, and so are the replies, to the last bit of their log-probs on a CPU.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from tinker_actors.actors import Mesh
from tinker_actors.data.chat_datasets import check_names, open_rows
from tinker_actors.data.chat_files import Joined
from tinker_actors.data.inputs import ModelInput
from tinker_actors.data.prompt_rows import PromptRow, read_prompt_row
from tinker_actors.data.seeds import derive_seed
from tinker_actors.environments.policy_agent import stops_of
from tinker_actors.errors import ConfigError, ContextOverflowError, DataError, ModelError, UnknownPolicyError
from tinker_actors.models import load_renderer, load_tokenizer
from tinker_actors.policies import PolicySpec, SnapshotStore
from tinker_actors.sampling import InvalidRequestError, Sampler, SamplingReply, SamplingRequest
from tinker_actors.scheduler.inference_config import InferenceConfig
from tinker_actors.scheduler.observer import InferenceSummary, Phase, RunObserver
from tinker_actors.scheduler.run_folder import RunFolder, write_atomically
from tinker_actors.scheduler.sections import ModelSection
from tinker_actors.scheduler.starts import hint_of
from tinker_actors.scheduler.stopping import StopRequest
from tinker_actors.telemetry import JsonlWriter, read_jsonl
from tinker_actors.training import Trainer

_BASE = "base"
"""The id of the policy that changes nothing."""


def check_inference(config: InferenceConfig) -> None:
    """Whether a run can work, as far as can be told without reading its data or loading weights.

    Raises:
        ConfigError: A file or a snapshot isn't there.
        ModelError: The model can't be resolved, or its chat template can't be used.
    """
    check_names(config.data.prompts)
    _found(config)
    load_renderer(load_tokenizer(config.model.name), config.model.chat_template)


async def run_inference(
    config: InferenceConfig, folder: RunFolder, observer: RunObserver, stop: StopRequest | None = None
) -> InferenceSummary:
    """Answer what a run's data asks. A folder with replies goes on from there.

    Raises:
        ConfigError: The data, the snapshot or the model can't be loaded, or the data is not what it was.
        DataError: A row is no prompt, or there is none; names it.
    """
    check_inference(config)
    observer.phase(Phase.START, 0, 0)
    rows = await asyncio.to_thread(open_rows, config.data.prompts, config.data.split)
    if not len(rows):
        raise DataError(f"{', '.join(config.data.prompts)} has no rows; there is nothing to answer")
    done = _keep_whole_lines(folder)
    folder.forget_after(done)
    observer.started(config.name, folder.root, len(rows), done, "prompt")
    async with _serving(config, folder) as (sampler, snapshot):
        state = {"snapshot": snapshot, "rows": len(rows)}
        _check_same(folder, state)
        with JsonlWriter(folder.replies) as replies, JsonlWriter(folder.metrics) as metrics:
            run = _Inference(config, rows, sampler, snapshot, replies, metrics, partial(_note, folder, state))
            while run.position < len(rows):
                if stop is not None and stop.asked and run.position:
                    await stop.halt()
                await run.answer_next(done)
                observer.phase(Phase.SAMPLE, run.position, len(rows))
    summary = _summary(folder, snapshot)
    write_atomically(folder.summary, json.dumps(asdict(summary), indent=1) + "\n")
    observer.phase(Phase.END, len(rows), len(rows))
    observer.finished(summary, folder.root)
    return summary


class _Inference:
    """Answers prompts, as many together as the configuration says.

    Attributes:
        position: Rows that are answered.
    """

    def __init__(
        self,
        config: InferenceConfig,
        rows: Joined,
        sampler: Sampler,
        snapshot: str,
        replies: JsonlWriter,
        metrics: JsonlWriter,
        begin: Callable[[], None],
    ) -> None:
        self._config, self._rows, self._sampler, self._snapshot = config, rows, sampler, snapshot
        self._replies, self._metrics, self._begin = replies, metrics, begin
        self._renderer = load_renderer(load_tokenizer(config.model.name), config.model.chat_template)
        self.position = 0

    async def answer_next(self, done: int) -> None:
        """Answer the next prompts and write what is not among the first `done` lines."""
        start = self.position
        stop = min(start + self._config.sampling.at_once, len(self._rows))
        self.position = stop
        if stop <= done:
            return
        began = time.monotonic()
        requests = [self._request(index) for index in range(start, stop)]
        answers: dict[int, Any] = {}
        async for ready in self._sampler.stream.sample_together(requests):
            answers.update(ready)
        self._begin()  # only now: of a run that is refused before its first reply nothing is left to go on with
        failed = tokens = 0
        for place, request in enumerate(requests):
            record = _record(start + place, request, answers[place])
            failed += "error" in record
            tokens += sum(len(reply["tokens"]) for reply in record.get("replies", ()))
            if start + place >= done:
                self._replies.write(record)
        seconds = time.monotonic() - began
        numbers = {
            "tokens": tokens,
            "failed": failed,
            "seconds": seconds,
            "tokens_per_second": tokens / max(seconds, 1e-9),
        }
        self._metrics.write({"step": stop, "kind": "inference", **numbers})

    def _request(self, index: int) -> SamplingRequest:
        source, own = self._rows.at(index)
        try:
            row = read_prompt_row(source.row(own), folder=source.folder)
            prompt = self._encoded(row)
        except (DataError, ModelError) as error:  # the template, or a model without images, may refuse messages
            raise DataError(f"{source.where(own)}: {error}") from None
        sampling = self._config.sampling
        params = sampling.params(derive_seed(self._config.seed, "inference", index))
        if row.messages is not None:  # a turn ends where the template ends it
            params = replace(params, stop=stops_of(params, self._renderer))
        return SamplingRequest(
            prompt=prompt.tokens,
            images=prompt.images,
            snapshot=self._snapshot,
            params=params,
            num_samples=sampling.samples,
        )

    def _encoded(self, row: PromptRow) -> ModelInput:
        if row.messages is not None:
            return self._renderer.start(row.messages).input
        tokenizer = self._renderer.tokenizer
        return ModelInput.of(tokenizer.encode_from_start(row.text) if row.text is not None else row.tokens or ())


def _record(index: int, request: SamplingRequest, answer: object) -> dict[str, Any]:
    record: dict[str, Any] = {"row": index, "prompt": list(request.prompt)}
    if isinstance(answer, SamplingReply):
        replies = [
            {"text": sample.text, "tokens": sample.tokens, "logprobs": sample.logprobs, "end": sample.end.value}
            for sample in answer.samples
        ]
        return {**record, "seed": answer.seed, "replies": replies}
    if isinstance(answer, ContextOverflowError | InvalidRequestError):  # the row's own fault: the others go on
        return {**record, "error": str(answer)}
    assert isinstance(answer, Exception)
    raise answer


@asynccontextmanager
async def _serving(config: InferenceConfig, folder: RunFolder) -> AsyncGenerator[tuple[Sampler, str]]:
    """A sampler that serves the run's snapshot, and its handle."""
    model, threads = config.model, config.sampling.threads
    store = config.sampling.store or str(folder.policies)
    async with Mesh(nodes=1, name=config.name) as mesh:
        found = _found(config) or await _base_snapshot(mesh, model, store)
        sampler = await mesh.spawn(
            Sampler,
            base_model=model.name,
            store=store,
            threads=threads,
            context_length=model.context_length,
            device=model.device,
            node=0,
        )
        await sampler.refresh([found])
        yield sampler, found


async def _base_snapshot(mesh: Mesh, model: ModelSection, store: str) -> str:
    """Handle of a snapshot of the base model itself: of an adapter that was never trained, which adds zero."""
    with contextlib.suppress(UnknownPolicyError):
        return SnapshotStore(store).latest(_BASE).handle
    trainer = await mesh.spawn(Trainer, base_model=model.name, store=store, threads=1, device=model.device, node=0)
    await trainer.create(PolicySpec(base_model=model.name, rank=1, name=_BASE))
    return (await trainer.publish(_BASE)).handle


def _found(config: InferenceConfig) -> str | None:
    """The handle of the snapshot that the configuration names; None for the base model."""
    sampling = config.sampling
    if sampling.snapshot is None or sampling.store is None:
        return None
    store = SnapshotStore(sampling.store)
    try:
        if sampling.snapshot == "latest":
            return store.latest(sampling.policy).handle
        return store.get(sampling.snapshot).handle
    except UnknownPolicyError as error:
        raise ConfigError(
            f"sampling.snapshot is {sampling.snapshot!r}, which {sampling.store} hasn't: {error}"
            f"{hint_of(sampling.store)}"
        ) from error


def _keep_whole_lines(folder: RunFolder) -> int:
    """Cut off a line that was cut in the middle; how many whole ones there are."""
    if not folder.replies.exists():
        return 0
    with folder.replies.open("rb+") as file:
        size = lines = 0
        for line in file:
            if line.endswith(b"\n"):
                size += len(line)
                lines += 1
        file.truncate(size)
    return lines


def _check_same(folder: RunFolder, state: Mapping[str, Any]) -> None:
    """Refuse to go on with something else than what was noted."""
    if (before := folder.saved_state()) not in (None, state):
        raise ConfigError(f"the run began with {before}, and it would go on with {dict(state)}; start another one")


def _note(folder: RunFolder, state: Mapping[str, Any]) -> None:
    """Note what is answered and by what, once."""
    if not folder.state.exists():
        write_atomically(folder.state, json.dumps(state))


def _summary(folder: RunFolder, snapshot: str) -> InferenceSummary:
    rows = read_jsonl(folder.metrics)
    failed = samples = tokens = prompts = 0
    with folder.replies.open(encoding="utf-8") as file:
        for line in file:
            record = json.loads(line)
            prompts += 1
            failed += "error" in record
            samples += len(record.get("replies", ()))
            tokens += sum(len(reply["tokens"]) for reply in record.get("replies", ()))
    return InferenceSummary(
        snapshot=snapshot,
        prompts=prompts,
        failed=failed,
        samples=samples,
        tokens=tokens,
        seconds=round(sum(row["seconds"] for row in rows), 2),
    )
