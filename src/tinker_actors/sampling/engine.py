"""The engine: a thread that takes the requests that wait, samples them as one batch, and hands back what is done."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import TypeAlias, TypeVar

import torch

from tinker_actors.data import TurnEnd
from tinker_actors.errors import ContextOverflowError, ModelError, PolicyError, SamplingError
from tinker_actors.models.tokenizer import Tokenizer
from tinker_actors.sampling.batch import Batch, PromptKey, prompt_key
from tinker_actors.sampling.requests import (
    InvalidRequestError,
    Sample,
    SamplerStats,
    SamplingReply,
    SamplingRequest,
)
from tinker_actors.sampling.residents import Checked, Residents
from tinker_actors.sampling.rows import Row, Ticket, rows_of
from tinker_actors.sampling.stops import PlainText, stop_ids_of

logger = logging.getLogger(__name__)

T = TypeVar("T")
Answer: TypeAlias = tuple[Ticket, SamplingReply | SamplingError]


class Engine:
    """Samples in a thread of its own. Every public method may be called from any thread.

    A batch takes what waits when the one before it ends, at most `max_batch` rows; nothing waits for a batch to fill.
    Requests that were submitted together are batched with each other only, in the order given, so that what they get
    has the same bits whatever else is asked and whenever.
    All rows of one batch share a network, so any LoRA snapshots of one base mix; each row runs on the snapshot that its
    request was pinned to when it was submitted.
    """

    def __init__(
        self,
        *,
        residents: Residents,
        tokenizer: Tokenizer,
        context_length: int,
        answer: Callable[[Sequence[Answer]], None],
        max_batch: int = 256,
        max_prefill_tokens: int = 16_384,
        threads: int | None = None,
    ) -> None:
        """Prepare; `start` begins.

        Args:
            residents: The snapshots that are loaded.
            tokenizer: The base model's; its stop ids end samples by default.
            context_length: Longest prompt and reply together, in tokens.
            answer: Called in the engine's thread with the requests that a step finished.
            max_batch: Rows of a batch at most.
            max_prefill_tokens: Padded prompt tokens of a batch at most, unless one prompt alone is longer.
            threads: Torch's computing threads; None leaves torch's setting.
        """
        self._residents, self._tokenizer, self._answer = residents, tokenizer, answer
        self._context_length, self._max_batch, self._max_prefill = context_length, max_batch, max_prefill_tokens
        self._threads = threads
        self._text = PlainText(tokenizer)
        self._changed = threading.Condition()
        self._waiting: deque[Row] = deque()
        self._between: deque[Callable[[], None]] = deque()
        self._closed_early = self._serving = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="sampler-engine", daemon=True)
        self._requests = self._failed = self._cancelled = self._samples = 0
        self._prompt_tokens = self._prefilled = self._generated = self._steps = self._live_steps = 0
        self._busy = 0.0

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

    def submit(self, request: SamplingRequest) -> Ticket | SamplingReply:
        """Accept a request, pinned to its snapshot.

        Returns:
            The ticket that will be answered, or the reply at once if the prompt leaves no room for a token.

        Raises:
            InvalidRequestError: A token id is outside the vocabulary.
            ContextOverflowError: The prompt is longer than the context.
            UnknownPolicyError: The snapshot is not loaded.
            SamplingError: The engine has stopped.
        """
        (ticket,) = self._submit((request,), party=None)
        if isinstance(ticket, Exception):
            raise ticket
        return ticket

    def submit_together(
        self, requests: Sequence[SamplingRequest]
    ) -> list[Ticket | SamplingReply | SamplingError | PolicyError]:
        """Accept requests whose batches nothing else enters; see `submit` for each.

        Returns:
            For each request what `submit` returns or raises.
        """
        return self._submit(requests, party=object())

    def _submit(
        self, requests: Sequence[SamplingRequest], party: object | None
    ) -> list[Ticket | SamplingReply | SamplingError | PolicyError]:
        accepted: list[Ticket | SamplingReply | SamplingError | PolicyError] = []
        with self._changed:
            for request in requests:
                try:
                    accepted.append(self._accept(request, party))
                except (SamplingError, PolicyError) as error:
                    accepted.append(error)
            self._changed.notify()
        return accepted

    def _accept(self, request: SamplingRequest, party: object | None) -> Ticket | SamplingReply:
        self._check(request)
        seed = secrets.randbits(63) if request.params.seed is None else request.params.seed
        if self._stopping:
            raise SamplingError("the sampler has stopped")
        resident = self._residents.pin(request.snapshot)
        count = request.num_samples
        ticket = Ticket(
            request=request, resident=resident, seed=seed, samples=[None] * count, missing=count, party=party
        )
        if len(request.prompt) == self._context_length:
            nothing = Sample(tokens=(), logprobs=(), end=TurnEnd.CONTEXT_OVERFLOW, text="")
            ticket.samples = [nothing] * count
            self._residents.unpin(resident)
            self._count_reply(ticket)
            return ticket.reply()
        rows = rows_of(
            ticket,
            context_length=self._context_length,
            stop_ids=stop_ids_of(request.params, self._tokenizer),
            decoder=self._text,
        )
        self._waiting.extend(rows)
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Give up a request: its rows leave before the next step."""
        with self._changed:
            if not ticket.closed:
                self._close(ticket)
                self._cancelled += 1

    def replace(self, handles: Sequence[str], checked: Mapping[str, Checked]) -> Future[None]:
        """Serve exactly these snapshots (see `Residents`) from before the next step on.

        Requests under way, waiting ones included, stay on the snapshots that they were pinned to.
        """

        def action() -> None:
            self._residents.replace(handles, checked)
            if not self._serving:
                self._residents.collect()

        return self._between_steps(action)

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

    def stats(self) -> SamplerStats:
        """What was done since the start."""
        with self._changed:
            return SamplerStats(
                requests=self._requests,
                failed=self._failed,
                cancelled=self._cancelled,
                samples=self._samples,
                prompt_tokens=self._prompt_tokens,
                prefilled_tokens=self._prefilled,
                generated_tokens=self._generated,
                steps=self._steps,
                busy_seconds=self._busy,
                occupancy=self._live_steps / self._steps if self._steps else 0.0,
                waiting=sum(not row.ticket.closed for row in self._waiting),
                snapshots=self._residents.handles(),
            )

    def _check(self, request: SamplingRequest) -> None:
        length, limit = len(request.prompt), self._context_length
        if length > limit:
            raise ContextOverflowError(f"the prompt has {length} tokens; the context holds {limit}")
        vocabulary = self._residents.vocab_size
        if max(request.prompt) >= vocabulary:
            position = next(i for i, token in enumerate(request.prompt) if token >= vocabulary)
            raise InvalidRequestError(
                f"prompt[{position}] is {request.prompt[position]}; a token id below {vocabulary} is needed"
            )
        self.look(request)

    def look(self, request: SamplingRequest) -> None:
        """Decode a request's images, which `submit` then need not do.

        Raises:
            InvalidRequestError: The model reads no images, or not these.
        """
        vision = self._residents.vision
        if vision is None:
            if request.images:
                raise InvalidRequestError(f"images has {len(request.images)}; the base model reads none")
            return
        try:
            vision.check(request.input)
        except ModelError as error:
            raise InvalidRequestError(f"the prompt can't be read: {error}") from error

    def _run(self) -> None:
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        while self._wait():
            self._run_between()
            self._residents.collect()
            if rows := self._take():
                self._serve(rows)
                self._residents.collect()
        with self._changed:
            self._run_between()
            error = SamplingError("the sampler stopped before the request was served")
            self._fail({row.ticket for row in self._waiting}, error)
            self._waiting.clear()

    def _wait(self) -> bool:
        with self._changed:
            while not (self._stopping or self._waiting or self._between):
                self._changed.wait()
            return not self._stopping

    def _run_between(self) -> None:
        while self._between:
            self._between.popleft()()

    def _take(self) -> list[Row]:
        """The rows of the next batch, in order of arrival, all of the first one's network and party."""
        taken: list[Row] = []
        passed: list[Row] = []
        prompts: set[PromptKey] = set()
        longest = 0
        with self._changed:
            while self._waiting and len(taken) < self._max_batch:
                row = self._waiting.popleft()
                if row.ticket.closed:
                    continue
                if taken and not _may_share(row, taken[0]):
                    passed.append(row)
                    continue
                prompt = row.ticket.request.prompt
                distinct = len(prompts) + (prompt_key(row) not in prompts)
                if taken and distinct * max(longest, len(prompt)) > self._max_prefill:
                    passed.append(row)
                    break
                taken.append(row)
                prompts.add(prompt_key(row))
                longest = max(longest, len(prompt))
            self._waiting.extendleft(reversed(passed))
        return taken

    def _serve(self, rows: list[Row]) -> None:
        batch: Batch | None = None
        began = time.perf_counter()
        self._serving = True
        try:
            batch = Batch(rows[0].ticket.resident.network, rows)
            while batch.live:
                live = batch.live
                finished = batch.step()
                self._steps += 1
                self._live_steps += live
                self._generated += live
                if finished:
                    self._finish(finished)
                if self._closed_early:
                    self._closed_early = False
                    batch.drop_unwanted()
                if self._between:
                    self._run_between()
                if self._stopping:
                    break
            self._prefilled += batch.prefilled
        except Exception as error:  # a failing batch (out of memory, a broken adapter) must not end the engine
            logger.exception("a batch of %d rows failed", len(rows))
            failure = SamplingError(f"the batch failed: {type(error).__name__}: {error}")
            failure.__cause__ = error
            self._fail({row.ticket for row in rows}, failure)
        finally:
            self._busy += time.perf_counter() - began
            self._serving = False
        if self._stopping and batch is not None and batch.live:
            self._fail({row.ticket for row in batch.rows()}, SamplingError("the sampler stopped amid the request"))

    def _finish(self, finished: list[Row]) -> None:
        # decoding takes a while; the lock is only for what other threads see
        samples = [None if row.end is None else row.sample(self._text) for row in finished]
        done: list[Answer] = []
        with self._changed:
            for row, sample in zip(finished, samples, strict=True):
                ticket = row.ticket
                if ticket.closed:
                    continue
                if sample is None:
                    self._close(ticket)
                    self._failed += 1
                    done.append((ticket, SamplingError(f"{ticket.resident.handle} gives logits that are not finite")))
                    continue
                ticket.samples[row.index] = sample
                ticket.missing -= 1
                if not ticket.missing:
                    ticket.closed = True
                    self._residents.unpin(ticket.resident)
                    self._count_reply(ticket)
                    done.append((ticket, ticket.reply()))
        if done:
            self._answer(done)

    def _fail(self, tickets: set[Ticket], error: SamplingError) -> None:
        with self._changed:
            failed = [ticket for ticket in tickets if not ticket.closed]
            for ticket in failed:
                self._close(ticket)
            self._failed += len(failed)
        if failed:
            self._answer([(ticket, error) for ticket in failed])

    def _close(self, ticket: Ticket) -> None:
        ticket.closed = self._closed_early = True
        self._residents.unpin(ticket.resident)

    def _count_reply(self, ticket: Ticket) -> None:
        self._requests += 1
        self._samples += len(ticket.samples)
        self._prompt_tokens += len(ticket.request.prompt)


def _may_share(row: Row, first: Row) -> bool:
    """Whether a row may enter a batch that another one began."""
    return row.ticket.resident.network is first.ticket.resident.network and row.ticket.party is first.ticket.party
