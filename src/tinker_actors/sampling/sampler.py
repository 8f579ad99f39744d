"""The sampler actor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from functools import partial

from tinker_actors.actors import Actor, concurrent
from tinker_actors.errors import ConfigError, PolicyError, SamplingError
from tinker_actors.models.base import load_base, load_own_base
from tinker_actors.models.catalogue import load_tokenizer
from tinker_actors.policies import SnapshotStore
from tinker_actors.sampling.arrivals import as_they_come
from tinker_actors.sampling.engine import Answer, Engine, Progress
from tinker_actors.sampling.limits import EngineLimits, check_positive
from tinker_actors.sampling.metrics import SamplerStats
from tinker_actors.sampling.requests import SampledToken, SamplingReply, SamplingRequest
from tinker_actors.sampling.residents import Residents
from tinker_actors.sampling.rows import Ticket


class Sampler(Actor):
    """Samples from any number of snapshots over one base model.

    Snapshots load and leave only by `refresh`. A request for one that isn't loaded is refused: the base model is never
    served instead. `sample` runs concurrently: what is asked joins the running batch at its next step.

    Args:
        base_model: Name of the base model, which loads when the actor starts.
        store: Folder of the snapshot store.
        max_batch: Samples that run at once at most.
        max_step_tokens: Tokens of one step at most: long prompts are computed in parts beside running samples.
        max_waiting: Samples that may wait; a request beyond them is refused with `Overloaded`.
        context_length: Longest prompt and reply together, in tokens; None is the base model's own.
        kv_memory: Bytes for keys and values, running and cached.
        prefix_caching: Whether finished sequences stay, as memory allows, for prompts that go on from them.
        max_adapters: Adapters among the base's layers at once; of those that are served, the longest unused give
            way to others and come back when they are asked for. None for all that are served.
        adapter_memory: Bytes of host memory for copies of adapters, where `max_adapters` bounds them; the rest is
            read again from the store, beside the running batch.
        keep_base: Whether the base model stays in memory as it was loaded, for trainers, other samplers and lent
            full weights in this process. If not, and nobody has loaded it yet, only what the sampler computes with
            stays.
        dtype: The base weights' dtype by name.
        device: Where the base's weights, the adapters and the keys and values are, and what computes: `cpu`, `cuda`
            or a GPU by its number, `cuda:1`.
        threads: Computing threads; None is 1 for models of less than ten million parameters, else torch's setting.

    Raises:
        ConfigError: A number is not positive.
    """

    def __init__(
        self,
        *,
        base_model: str,
        store: str,
        max_batch: int = 256,
        max_step_tokens: int = 512,
        max_waiting: int = 65_536,
        context_length: int | None = None,
        kv_memory: int = 2**30,
        prefix_caching: bool = True,
        max_adapters: int | None = None,
        adapter_memory: int = 2**30,
        keep_base: bool = True,
        dtype: str = "float32",
        device: str = "cpu",
        threads: int | None = None,
    ) -> None:
        self._limits = EngineLimits(
            max_batch=max_batch,
            max_step_tokens=max_step_tokens,
            max_waiting=max_waiting,
            kv_memory=kv_memory,
            prefix_caching=prefix_caching,
        )
        for name, value in (
            ("context_length", context_length),
            ("max_adapters", max_adapters),
            ("threads", threads),
        ):
            check_positive(name, value)
        if adapter_memory < 0:
            raise ConfigError(f"adapter_memory is {adapter_memory}; an integer >= 0 is needed")
        self._load = load_base if keep_base else load_own_base
        self._max_adapters, self._adapter_memory = max_adapters, adapter_memory
        self._base_model, self._threads = base_model, threads
        self._dtype, self._device = dtype, device
        self._store = SnapshotStore(store)
        self._context_length = context_length
        self._answers: dict[Ticket, asyncio.Future[SamplingReply]] = {}
        self._streams: dict[Ticket, asyncio.Queue[SampledToken | None]] = {}

    async def on_start(self) -> None:
        """Load the base model and start the engine."""
        self._loop = asyncio.get_running_loop()
        self._engine = await asyncio.to_thread(self._open)
        self._engine.start()

    def _open(self) -> Engine:
        base = self._load(self._base_model, self._dtype, self._device)
        longest = base.context_length
        if self._context_length is not None and self._context_length > longest:
            raise ConfigError(
                f"context_length is {self._context_length}; {base.name} was made for at most {longest} tokens"
            )
        self._residents = Residents(
            base=base,
            store=self._store,
            max_adapters=self._max_adapters,
            adapter_memory=self._adapter_memory,
        )
        return Engine(
            residents=self._residents,
            tokenizer=load_tokenizer(self._base_model),
            context_length=self._context_length or longest,
            answer=self._from_engine,
            progress=self._progress_from_engine,
            limits=self._limits,
            threads=base.threads(self._threads),
        )

    async def on_stop(self) -> None:
        """Stop the engine; requests under way fail."""
        await asyncio.to_thread(self._engine.stop)

    async def refresh(self, snapshots: Sequence[str]) -> None:
        """Serve exactly these snapshots from now on: load the ones that are missing, release the others.

        The only point where snapshots load or leave. Requests under way finish on the snapshot that they were pinned
        to, even if it leaves. All or nothing: if one can't be loaded, what was served before stays.

        Args:
            snapshots: Handles of kind `sampler_weights`.

        Raises:
            UnknownPolicyError: The store has no such snapshot.
            SnapshotCorruptError: A snapshot's files don't match its manifest.
            PolicyError: A handle is malformed, or the snapshot is of another base model.
        """
        handles = tuple(dict.fromkeys(snapshots))
        # files are read and checked beside the running batch; only the placing interrupts it
        checked = await asyncio.to_thread(self._residents.check, handles)
        await asyncio.wrap_future(self._engine.replace(handles, checked))

    @concurrent
    async def sample(self, request: SamplingRequest) -> SamplingReply:
        """Sample.

        Raises:
            InvalidRequestError: A token id is outside the vocabulary, or an image can't be read.
            ContextOverflowError: The prompt is longer than the context; names both lengths.
            UnknownPolicyError: The snapshot is not loaded.
            Overloaded: Too much waits already; its `retry_after` says when to ask again.
            SamplingError: The computation failed, or the sampler stopped.
        """
        ticket = await self._submit(request)
        if isinstance(ticket, SamplingReply):
            return ticket
        future: asyncio.Future[SamplingReply] = self._loop.create_future()
        self._answers[ticket] = future  # before the loop turns: an answer can't overtake it
        try:
            return await future
        except asyncio.CancelledError:
            self._engine.cancel(ticket)
            raise
        finally:
            del self._answers[ticket]

    @concurrent
    async def sample_tokens(self, request: SamplingRequest) -> AsyncGenerator[SampledToken | SamplingReply, None]:
        """Sample, telling each token as soon as it is drawn.

        Yields:
            The tokens of all samples as they come, then the reply that `sample` would have given.

        Raises:
            SamplingError: As `sample`.
        """
        ticket = await self._submit(request, streams=True)
        if isinstance(ticket, SamplingReply):
            yield ticket
            return
        queue = self._streams[ticket] = asyncio.Queue()
        future = self._answers[ticket] = self._loop.create_future()
        future.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            while (token := await queue.get()) is not None:
                yield token
            yield await future
        finally:
            self._engine.cancel(ticket)  # does nothing to one that was answered
            del self._streams[ticket], self._answers[ticket]

    @concurrent
    async def sample_together(
        self, requests: Sequence[SamplingRequest]
    ) -> AsyncIterator[tuple[tuple[int, SamplingReply | SamplingError | PolicyError], ...]]:
        """Sample many requests in one ask; each is answered as soon as it is done.

        On one machine, with the same base model, snapshots and number of threads, the same requests get the same
        tokens and log-probs to the last bit, whatever else the sampler does.

        Yields:
            The position of each request that is done with its reply, or with the error that `sample` would have
            raised; each position once.
        """
        tickets = self._engine.submit_together(requests)
        done: asyncio.Queue[tuple[int, SamplingReply | SamplingError | PolicyError]] = asyncio.Queue()
        for position, ticket in enumerate(tickets):
            if isinstance(ticket, Ticket):
                future = self._answers[ticket] = self._loop.create_future()
                future.add_done_callback(partial(_put, done, position))
            else:
                done.put_nowait((position, ticket))
        try:
            async for ready in as_they_come(done, len(tickets)):
                yield ready
        finally:
            for ticket in tickets:
                if isinstance(ticket, Ticket):
                    self._engine.cancel(ticket)  # does nothing to those that were answered
                    del self._answers[ticket]

    async def stats(self) -> SamplerStats:
        """What was done since the start."""
        return self._engine.stats()

    async def _submit(self, request: SamplingRequest, *, streams: bool = False) -> Ticket | SamplingReply:
        if request.images:  # decoding them takes a while
            await asyncio.to_thread(self._engine.look, request)
        return self._engine.submit(request, streams=streams)

    def _progress_from_engine(self, told: Sequence[Progress]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._tell, told)

    def _tell(self, told: Sequence[Progress]) -> None:
        for ticket, token in told:
            if (queue := self._streams.get(ticket)) is not None:
                queue.put_nowait(token)

    def _from_engine(self, answers: Sequence[Answer]) -> None:
        # one wake-up of the loop for all requests that a step finished
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._resolve, answers)

    def _resolve(self, answers: Sequence[Answer]) -> None:
        for ticket, answer in answers:
            future = self._answers.get(ticket)
            if future is None or future.done():
                continue
            if isinstance(answer, SamplingError):
                future.set_exception(answer)
            else:
                future.set_result(answer)


def _put(
    done: asyncio.Queue[tuple[int, SamplingReply | SamplingError | PolicyError]],
    position: int,
    future: asyncio.Future[SamplingReply],
) -> None:
    error = future.exception()
    done.put_nowait((position, future.result() if error is None else error))  # pyright: ignore[reportArgumentType]
