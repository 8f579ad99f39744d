"""The engine: a thread that computes one step after another for whoever asks, and hands back what is done."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TypeAlias, TypeVar

import torch

from tinker_actors.data import TurnEnd
from tinker_actors.errors import PolicyError, SamplingError
from tinker_actors.models.tokenizer import Tokenizer
from tinker_actors.sampling.admission import Admission
from tinker_actors.sampling.limits import EngineLimits
from tinker_actors.sampling.memory import Memory
from tinker_actors.sampling.metrics import Meter, SamplerStats
from tinker_actors.sampling.networks import Network
from tinker_actors.sampling.requests import (
    Sample,
    SampledToken,
    SamplingReply,
    SamplingRequest,
)
from tinker_actors.sampling.residents import Checked, Residents
from tinker_actors.sampling.rows import Row, Ticket
from tinker_actors.sampling.schedule import Schedule, Work
from tinker_actors.sampling.step import Outcome, Steps

logger = logging.getLogger(__name__)

T = TypeVar("T")
Answer: TypeAlias = tuple[Ticket, SamplingReply | SamplingError]
Progress: TypeAlias = tuple[Ticket, SampledToken]


class Engine:
    """Samples in a thread of its own. Every public method may be called from any thread.

    A step computes the next token of every running sample and as much of the prompts as its budget leaves room for,
    whatever their snapshots. Requests join and leave between any two steps. What a request gets doesn't depend on what
    shares its steps, to the last bit; each runs on the snapshot that it was pinned to when it was submitted.

    Args:
        residents: The snapshots that are loaded.
        tokenizer: The base model's; its stop ids end samples by default.
        context_length: Longest prompt and reply together, in tokens.
        answer: Called in the engine's thread with the requests that a step finished.
        progress: Called in the engine's thread with the tokens of requests that are streamed.
        limits: How much it does at a time.
        threads: Torch's computing threads; None leaves torch's setting.

    Raises:
        ConfigError: The memory for keys and values doesn't hold one sequence of the context's length.
    """

    def __init__(
        self,
        *,
        residents: Residents,
        tokenizer: Tokenizer,
        context_length: int,
        answer: Callable[[Sequence[Answer]], None],
        progress: Callable[[Sequence[Progress]], None] | None = None,
        limits: EngineLimits | None = None,
        threads: int | None = None,
    ) -> None:
        limits = limits or EngineLimits()
        self._residents, self._answer, self._progress = residents, answer, progress
        self._threads = threads
        self._changed = threading.Condition()
        self._between: deque[Callable[[], None]] = deque()
        self._untidy = self._stopping = False
        self._thread = threading.Thread(target=self._run, name="sampler-engine", daemon=True)
        self._meter, self._steps = Meter(), Steps()
        self._admission = Admission(
            residents, tokenizer, self._meter, context_length=context_length, max_waiting=limits.max_waiting
        )
        residents.lodging.wake = self._wake
        self._schedule = Schedule(
            Memory.within(
                limits.kv_memory,
                residents.network.kv_shape,
                residents.network.dtype,
                longest=context_length,
                most=2 * limits.max_batch,
                prefix_caching=limits.prefix_caching,
                device=residents.network.device,
            ),
            residents.lodging,
            self._meter,
            max_rows=limits.max_batch,
            max_tokens=limits.max_step_tokens,
        )

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def stop(self) -> None:
        """End after the present step; requests under way fail. Blocks until the thread is done."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()
        self._residents.lodging.close()

    def look(self, request: SamplingRequest) -> None:
        """Decode a request's images, which `submit` then need not do; see `Checks.look`."""
        self._admission.checks.look(request)

    def submit(self, request: SamplingRequest, *, streams: bool = False) -> Ticket | SamplingReply:
        """Accept a request, pinned to its snapshot.

        Returns:
            The ticket that will be answered, or the reply at once if the prompt leaves no room for a token.

        Raises:
            InvalidRequestError: A token id is outside the vocabulary.
            ContextOverflowError: The prompt is longer than the context.
            UnknownPolicyError: The snapshot is not loaded.
            Overloaded: Too much waits already.
            SamplingError: The engine has stopped.
        """
        with self._changed:
            ticket = self._accept(request, streams)
            self._changed.notify()
        return ticket

    def submit_together(
        self, requests: Sequence[SamplingRequest]
    ) -> list[Ticket | SamplingReply | SamplingError | PolicyError]:
        """Accept requests in one go; see `submit` for each.

        Returns:
            For each request what `submit` returns or raises.
        """
        accepted: list[Ticket | SamplingReply | SamplingError | PolicyError] = []
        with self._changed:
            for request in requests:
                try:
                    accepted.append(self._accept(request, False))
                except (SamplingError, PolicyError) as error:
                    accepted.append(error)
            self._changed.notify()
        return accepted

    def cancel(self, ticket: Ticket) -> None:
        """Give up a request: its rows leave before the next step."""
        with self._changed:
            if not ticket.closed:
                self._close(ticket)
                self._meter.cancelled += 1
                self._changed.notify()

    def replace(self, handles: Sequence[str], checked: Mapping[str, Checked]) -> Future[None]:
        """Serve exactly these snapshots (see `Residents`) from before the next step on.

        Requests under way, waiting ones included, stay on the snapshots that they were pinned to.
        """
        return self._between_steps(lambda: self._residents.replace(handles, checked))

    def stats(self) -> SamplerStats:
        """What was done since the start."""
        with self._changed:
            memory, adapters = self._schedule.memory, self._residents.lodging.counts()
            return replace(
                self._meter.stats(self._residents.holdings()),
                waiting=sum(not row.ticket.closed for row in self._schedule.waiting),
                running=self._schedule.placed,
                kv_tokens=memory.running,
                kv_cached=memory.index.cached,
                kv_capacity=memory.extents.places,
                kv_bytes=memory.pool.nbytes,
                kv_evicted=memory.evicted,
                adapters_loaded=adapters.placed,
                adapter_bytes=adapters.in_network,
                adapter_host_bytes=adapters.in_host_memory,
                adapters_evicted=adapters.evicted,
                adapters_read=adapters.read,
            )

    def _accept(self, request: SamplingRequest, streams: bool) -> Ticket | SamplingReply:
        self._admission.check(request, self._schedule.waiting_count)
        if self._stopping:
            raise SamplingError("the sampler has stopped")
        ticket, rows = self._admission.admit(request, streams=streams)
        if not rows:
            self._count_reply(ticket)
            return ticket.reply()
        self._schedule.add(rows)
        return ticket

    def _between_steps(self, action: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()

        def run() -> None:
            try:
                result = action()
            except Exception as error:  # handed to whoever asked for the action, whatever it is
                future.set_exception(error)
            else:
                future.set_result(result)

        with self._changed:
            if self._stopping:
                raise SamplingError("the sampler has stopped")
            self._between.append(run)
            self._changed.notify()
        return future

    def _run(self) -> None:
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        while self._wait():
            while self._between:
                self._between.popleft()()
            with self._changed:
                works = self._prepare()
            for network, own in _by_network(works).items():
                self._serve(network, own)
        with self._changed:
            while self._between:
                self._between.popleft()()
            rows = [*self._schedule.waiting, *self._placed()]
        self._fail({row.ticket for row in rows}, SamplingError("the sampler stopped before the request was served"))

    def _wait(self) -> bool:
        with self._changed:
            while not (self._stopping or self._between or self._untidy) and self._schedule.idle:
                self._changed.wait()
            return not self._stopping

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify()

    def _prepare(self) -> list[Work]:
        """Drop what nobody waits for, then plan."""
        schedule = self._schedule
        if self._untidy:
            self._untidy = False
            schedule.drop_closed()
        for resident in self._residents.collect():
            schedule.memory.forget(resident)
            if not self._residents.serves(resident.handle):
                self._meter.forget(resident.handle)
        for rows, error in schedule.settle():
            failure = SamplingError(f"the adapter can't be loaded again: {type(error).__name__}: {error}")
            failure.__cause__ = error
            self._fail({row.ticket for row in rows}, failure)
        return schedule.plan()

    def _placed(self) -> list[Row]:
        return [entry for row in self._schedule.running for entry in (row, *row.followers)]

    def _serve(self, network: Network, works: list[Work]) -> None:
        began = time.perf_counter()
        try:
            outcome = self._steps.run(network, works, self._schedule)
            self._take(outcome)
        except Exception as error:  # what fails (memory, an adapter, a decoder) must not end the engine
            logger.exception("a step of %d rows failed", len(works))
            failure = SamplingError(f"the step failed: {type(error).__name__}: {error}")
            failure.__cause__ = error
            with self._changed:
                tickets = {entry.ticket for work in works for entry in (work.row, *work.row.followers)}
                for row in [row for row in self._schedule.running if row.ticket in tickets]:
                    self._schedule.release(row, broken=True)
            self._fail(tickets, failure)
            return
        self._meter.step(
            began,
            prefilled=outcome.prefilled,
            drawn=len(outcome.rows),
            rows=((work.row.ticket.resident.handle, work.count) for work in works),
        )

    def _take(self, outcome: Outcome) -> None:
        now = time.perf_counter()
        finished: list[tuple[Row, Sample | None]] = []
        told: list[Progress] = []
        if outcome.drawn is not None:
            drawn = outcome.drawn
            for row, token, logprob, tops in zip(outcome.rows, drawn.tokens, drawn.logprobs, drawn.tops, strict=True):
                ticket = row.ticket
                if row.drawn:
                    self._meter.went_on(ticket.resident.handle, now - row.drawn_at)
                elif not row.index:
                    self._meter.began(ticket.resident.handle, now - ticket.arrived)
                row.drawn_at = now
                done = row.take(token, logprob)
                if tops:
                    row.tops.append(tops)
                if ticket.streams and row.drawn:
                    told.append((ticket, SampledToken(index=row.index, token=token, logprob=logprob, top=tops)))
                if done:
                    finished.append((row, None if row.end is None else row.sample(self._admission.text)))
        for row in outcome.scored:
            row.end = TurnEnd.LENGTH
            finished.append((row, Sample(tokens=(), logprobs=(), end=TurnEnd.LENGTH, text="")))
        if told and self._progress is not None:
            self._progress(told)
        if finished:
            self._finish(finished)

    def _finish(self, finished: list[tuple[Row, Sample | None]]) -> None:
        done: list[Answer] = []
        with self._changed:
            for row, sample in finished:
                ticket = row.ticket
                self._schedule.release(row, broken=sample is None)
                if ticket.closed:
                    continue
                if sample is None:
                    self._close(ticket)
                    self._meter.failed += 1
                    done.append((ticket, SamplingError(f"{ticket.resident.handle} gives logits that are not finite")))
                    continue
                ticket.samples[row.index] = sample
                ticket.missing -= 1
                if not ticket.missing:
                    ticket.closed = True
                    self._residents.unpin(ticket.resident)
                    self._count_reply(ticket)
                    done.append((ticket, ticket.reply()))
            # not here: what another network computes in this round may still be on it
            self._untidy |= self._residents.leave
        if done:
            self._answer(done)

    def _fail(self, tickets: set[Ticket], error: SamplingError) -> None:
        with self._changed:
            failed = [ticket for ticket in tickets if not ticket.closed]
            for ticket in failed:
                self._close(ticket)
            self._meter.failed += len(failed)
        if failed:
            self._answer([(ticket, error) for ticket in failed])

    def _close(self, ticket: Ticket) -> None:
        ticket.closed = self._untidy = True
        self._residents.unpin(ticket.resident)

    def _count_reply(self, ticket: Ticket) -> None:
        self._meter.answered(
            ticket.resident.handle,
            samples=len(ticket.samples),
            prompt=len(ticket.request.prompt),
            cached=ticket.cached,
            generated=sum(len(sample.tokens) for sample in ticket.samples if sample is not None),
        )


def _by_network(works: Sequence[Work]) -> dict[Network, list[Work]]:
    found: dict[Network, list[Work]] = {}
    for work in works:
        found.setdefault(work.row.ticket.resident.network, []).append(work)
    return found
