"""The actor that stands before an engine of another kind and answers as `Sampler` does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace

from tinker_actors.actors import Actor, concurrent
from tinker_actors.data import TurnEnd
from tinker_actors.errors import ContextOverflowError, PolicyError, SamplingError, UnknownPolicyError
from tinker_actors.sampling.arrivals import as_they_come
from tinker_actors.sampling.backends.contract import Drawn, Loaded, SnapshotEngine
from tinker_actors.sampling.metrics import Holding, Meter, Residence, SamplerStats
from tinker_actors.sampling.requests import (
    EngineDiedError,
    InvalidRequestError,
    Overloaded,
    Sample,
    SampledToken,
    SamplingReply,
    SamplingRequest,
)
from tinker_actors.sampling.scoring import PromptScoring

_PATIENCE = 1.0
"""Seconds that snapshots which leave are waited for at the end."""

_Result = SamplingReply | SamplingError | PolicyError


@dataclass(slots=True, kw_only=True, eq=False)
class _Served:
    """A loaded snapshot; it leaves the engine once it is not served and no request is under way on it."""

    loaded: Loaded
    pins: int = 0


class EngineSampler(Actor):
    """Answers as `Sampler` does, by an engine that is given.

    Snapshots load and leave only by `refresh`; requests finish on the one that they were pinned to. A request whose
    engine dies under it is served once more by a fresh one, unless tokens of it were told already.
    """

    def __init__(self, engine: SnapshotEngine, *, max_waiting: int) -> None:
        self._engine, self._max_waiting = engine, max_waiting
        self._served: dict[str, _Served] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._meter = Meter()
        self._under_way = 0
        self._busy_since = 0.0

    async def on_start(self) -> None:
        """Start the engine, or find it."""
        await self._engine.start()

    async def on_stop(self) -> None:
        """Free what the engine holds."""
        if self._leaving:
            await asyncio.wait(self._leaving, timeout=_PATIENCE)
        for task in self._leaving:
            task.cancel()
        await self._engine.stop()

    async def refresh(self, snapshots: Sequence[str]) -> None:
        """Serve exactly these snapshots from now on; see `Sampler.refresh`.

        Raises:
            UnknownPolicyError: There is no such snapshot.
            PolicyError: The engine can't serve it.
            SamplingError: The engine can't be reached.
        """
        fresh: dict[str, _Served] = {}
        try:
            for handle in dict.fromkeys(snapshots):
                if handle not in self._served:
                    fresh[handle] = _Served(loaded=await self._engine.load(handle))
        except BaseException:  # whatever it was, nothing half loaded stays
            for served in fresh.values():
                self._leave(served)
            raise
        before, self._served = self._served, {}
        for handle in dict.fromkeys(snapshots):
            self._served[handle] = fresh.get(handle) or before[handle]
        for handle, served in before.items():
            if handle not in self._served and not served.pins:
                self._leave(served)

    @concurrent
    async def sample(self, request: SamplingRequest) -> SamplingReply:
        """Sample.

        Raises:
            InvalidRequestError: The engine can't serve the request as asked.
            ContextOverflowError: The prompt is longer than the context; names both lengths.
            UnknownPolicyError: The snapshot is not loaded.
            Overloaded: Too much is under way already; its `retry_after` says when to ask again.
            EngineDiedError: The engine died, and again when the request was repeated, or can't be started again.
            SamplingError: The computation failed.
        """
        return await self._serve(request, None)

    @concurrent
    async def sample_tokens(self, request: SamplingRequest) -> AsyncGenerator[SampledToken | SamplingReply, None]:
        """Sample, telling each token as soon as the engine does.

        Yields:
            The tokens of all samples as they come, then the reply that `sample` would have given.

        Raises:
            SamplingError: As `sample`.
        """
        told: asyncio.Queue[SampledToken | None] = asyncio.Queue()
        task = asyncio.create_task(self._serve(request, told.put_nowait))
        task.add_done_callback(lambda _: told.put_nowait(None))
        try:
            while (token := await told.get()) is not None:
                yield token
            yield await task
        finally:
            task.cancel()

    @concurrent
    async def sample_together(
        self, requests: Sequence[SamplingRequest]
    ) -> AsyncIterator[tuple[tuple[int, SamplingReply | SamplingError | PolicyError], ...]]:
        """Sample many requests in one ask; each is answered as soon as it is done.

        Yields:
            The position of each request that is done with its reply, or with the error that `sample` would have
            raised; each position once.
        """
        done: asyncio.Queue[tuple[int, _Result]] = asyncio.Queue()
        tasks = [asyncio.create_task(self._serve_into(done, place, each)) for place, each in enumerate(requests)]
        try:
            async for ready in as_they_come(done, len(tasks)):
                yield ready
        finally:
            for task in tasks:
                task.cancel()

    async def stats(self) -> SamplerStats:
        """What was done since the start; what only the engine knows, such as its memory, is 0."""
        self._count_time()
        holdings = {
            handle: Holding(residence=Residence.NETWORK, under_way=served.pins)
            for handle, served in self._served.items()
        }
        return replace(self._meter.stats(holdings), running=self._under_way)

    async def _serve_into(self, done: asyncio.Queue[tuple[int, _Result]], place: int, request: SamplingRequest) -> None:
        try:
            result: _Result = await self._serve(request, None)
        except (SamplingError, PolicyError) as error:
            result = error
        except Exception as error:  # the boundary to the engine: whatever it raises is this request's failure
            result = SamplingError(f"{type(error).__name__}: {error}")
        done.put_nowait((place, result))

    async def _serve(self, request: SamplingRequest, tell: Callable[[SampledToken], None] | None) -> SamplingReply:
        served = self._served.get(request.snapshot)
        if served is None:
            raise UnknownPolicyError(
                f"{request.snapshot} is not loaded in this sampler, which serves {list(self._served)}; refresh with it "
                "first"
            )
        self._check(request)
        self._admit(request.num_samples)
        served.pins += 1
        try:
            drawn = await self._drawn(served.loaded, request, tell)
        except asyncio.CancelledError:
            self._meter.cancelled += 1
            raise
        except SamplingError:
            self._meter.failed += 1
            raise
        finally:
            served.pins -= 1
            if not served.pins and self._served.get(request.snapshot) is not served:
                self._leave(served)
            self._count_time()
            self._under_way -= request.num_samples
        return self._reply(served.loaded, request, drawn)

    async def _drawn(
        self, loaded: Loaded, request: SamplingRequest, tell: Callable[[SampledToken], None] | None
    ) -> Drawn:
        if len(request.prompt) == self._engine.context_length and not (request.targets or request.prompt_logprobs):
            nothing = Sample(tokens=(), logprobs=(), end=TurnEnd.CONTEXT_OVERFLOW, text="")
            return Drawn(samples=(nothing,) * request.num_samples)
        told = None if tell is None else _Told(tell)
        try:
            return await self._engine.sample(loaded, request, told)
        except EngineDiedError:
            if told is not None and told.any:
                raise
        return await self._engine.sample(loaded, request, told)

    def _check(self, request: SamplingRequest) -> None:
        limit = self._engine.context_length
        length = len(request.prompt) + len(request.targets)
        scores = bool(request.targets) or request.prompt_logprobs
        if limit is not None and length > limit - scores:
            room = " less the one that is sampled beside the scores" if scores else ""
            raise ContextOverflowError(f"the prompt has {length} tokens; the context holds {limit}{room}")
        if request.targets and request.params.temperature not in (0, 1):
            raise InvalidRequestError(
                f"params.temperature is {request.params.temperature}; 1, or 0, which scores the same, is needed for "
                "targets with this engine"
            )
        if request.scoring != PromptScoring():
            raise InvalidRequestError(
                f"scoring is {request.scoring}; this engine tells the log-probs of whole prompts only"
            )
        self._engine.check(request)

    def _admit(self, samples: int) -> None:
        if self._under_way + samples > self._max_waiting:
            self._meter.refused += 1
            seconds = self._meter.seconds_for(samples)
            raise Overloaded(
                f"{self._under_way} samples are under way, at most {self._max_waiting} may; ask again in {seconds} s",
                seconds,
            )
        self._count_time()
        self._under_way += samples

    def _reply(self, loaded: Loaded, request: SamplingRequest, drawn: Drawn) -> SamplingReply:
        generated = sum(len(sample.tokens) for sample in drawn.samples)
        self._meter.generated += generated
        self._meter.cached += drawn.cached_tokens
        self._meter.prefilled += len(request.prompt) - drawn.cached_tokens
        self._meter.answered(
            loaded.handle,
            samples=len(drawn.samples),
            prompt=len(request.prompt),
            cached=drawn.cached_tokens,
            generated=generated,
        )
        return SamplingReply(
            samples=drawn.samples,
            snapshot=loaded.handle,
            snapshot_step=loaded.step,
            prompt_tokens=len(request.prompt),
            seed=drawn.seed,
            prompt_logprobs=drawn.prompt_logprobs,
            target_logprobs=drawn.target_logprobs,
            cached_tokens=drawn.cached_tokens,
        )

    def _leave(self, served: _Served) -> None:
        task = asyncio.create_task(self._engine.unload(served.loaded))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        task.add_done_callback(lambda _: self._forget(served.loaded.handle))

    def _forget(self, handle: str) -> None:
        if handle not in self._served:
            self._meter.forget(handle)

    def _count_time(self) -> None:
        now = time.perf_counter()
        if self._under_way:
            self._meter.busy += now - self._busy_since
        self._busy_since = now


class _Told:
    """Passes tokens on and remembers that there were any."""

    def __init__(self, tell: Callable[[SampledToken], None]) -> None:
        self._tell, self.any = tell, False

    def __call__(self, token: SampledToken) -> None:
        self.any = True
        self._tell(token)
