"""What a sampler counts and times."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

_KEPT = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A time in seconds: its median and 99th percentile over the last few thousand, 0 before the first."""

    p50: float = 0.0
    p99: float = 0.0

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """The spread of these values."""
        ordered = sorted(values)
        if not ordered:
            return cls()
        return cls(p50=ordered[len(ordered) // 2], p99=ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)])


class Residence(Enum):
    """Where the weights of a snapshot are."""

    NETWORK = "network"
    """In what computes: samples of it may run."""
    HOST = "host"
    """In host memory, for want of a place in the network."""
    STORE = "store"
    """In the store alone, from where they are read when they are asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """How a snapshot is held now.

    Attributes:
        residence: Where its weights are.
        bytes: Memory of its weights in the network, as many as they are themselves; 0 while they aren't there.
        host_bytes: Memory of a copy in host memory, which `max_adapters` makes the sampler keep; 0 without one.
        under_way: Requests that run on it or wait for it.
    """

    residence: Residence
    bytes: int = 0
    host_bytes: int = 0
    under_way: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterStats:
    """What one snapshot was asked for, and how it is held.

    Attributes:
        residence: Where its weights are now.
        bytes: Memory of its weights in the network; 0 while they aren't there.
        host_bytes: Memory of a copy in host memory; 0 without one.
        under_way: Requests that run on it now or wait for it.
        rows: Tokens computed with it: those of prompts, and those drawn that were gone on from. Only grows.
        requests: Requests answered.
        generated_tokens: Tokens drawn.
        prompt_tokens: Prompt tokens of answered requests.
        cached_tokens: Those of them that needn't be computed.
        queue_seconds: From a request's arrival to its first place.
        first_token_seconds: From a request's arrival to its first token.
        token_seconds: From one token of a sample to the next.
    """

    residence: Residence = Residence.STORE
    bytes: int = 0
    host_bytes: int = 0
    under_way: int = 0
    rows: int = 0
    requests: int = 0
    generated_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    queue_seconds: Spread = field(default_factory=Spread)
    first_token_seconds: Spread = field(default_factory=Spread)
    token_seconds: Spread = field(default_factory=Spread)

    @property
    def loaded(self) -> bool:
        """Whether samples of it may run without waiting for its weights."""
        return self.residence is Residence.NETWORK


class Times:
    """The last few thousand waits of requests and tokens, in seconds."""

    def __init__(self) -> None:
        self.queue: deque[float] = deque(maxlen=_KEPT)
        self.first: deque[float] = deque(maxlen=_KEPT)
        self.between: deque[float] = deque(maxlen=_KEPT)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerStats:
    """What a sampler has done since it started, and how it stands. Counts only grow; what is so `now` doesn't.

    Attributes:
        requests: Requests answered with samples.
        failed: Requests that ended in an error.
        cancelled: Requests whose asker went away.
        refused: Requests that were not taken because too many waited.
        preempted: Samples that gave up their memory for a while.
        samples: Samples delivered.
        prompt_tokens: Prompt tokens of answered requests.
        prefilled_tokens: Prompt tokens computed, once more after a pre-emption.
        cached_tokens: Prompt tokens whose keys and values were there already.
        generated_tokens: Tokens drawn.
        steps: Forward passes.
        busy_seconds: Time spent computing.
        prefill_seconds: Of it, in steps that computed mostly prompts.
        occupancy: Mean number of samples that drew a token per step, 0 before the first.
        waiting: Samples that wait for a place now.
        running: Samples that have one.
        kv_tokens: Token places taken by running samples now.
        kv_cached: Token places that hold finished sequences for later prompts.
        kv_capacity: Token places there are.
        kv_bytes: Memory of so many keys and values.
        kv_evicted: Finished sequences that gave up their places because others wanted them.
        adapters_loaded: Adapters that have a place in the network now, those that are on their way out included.
        adapter_bytes: Memory of their weights.
        adapter_host_bytes: Memory of copies of adapters in host memory now.
        adapters_evicted: How often an adapter gave up its place to another.
        adapters_read: How often an adapter was read again from the store because it was asked for.
        queue_seconds: From a request's arrival to its first place.
        first_token_seconds: From a request's arrival to its first token.
        token_seconds: From one token of a sample to the next.
        snapshots: Handles that are served now, in the order of their loading.
        by_snapshot: By handle, of those served now.
    """

    requests: int = 0
    failed: int = 0
    cancelled: int = 0
    refused: int = 0
    preempted: int = 0
    samples: int = 0
    prompt_tokens: int = 0
    prefilled_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    steps: int = 0
    busy_seconds: float = 0.0
    prefill_seconds: float = 0.0
    occupancy: float = 0.0
    waiting: int = 0
    running: int = 0
    kv_tokens: int = 0
    kv_cached: int = 0
    kv_capacity: int = 0
    kv_bytes: int = 0
    kv_evicted: int = 0
    adapters_loaded: int = 0
    adapter_bytes: int = 0
    adapter_host_bytes: int = 0
    adapters_evicted: int = 0
    adapters_read: int = 0
    queue_seconds: Spread = field(default_factory=Spread)
    first_token_seconds: Spread = field(default_factory=Spread)
    token_seconds: Spread = field(default_factory=Spread)
    snapshots: tuple[str, ...] = ()
    by_snapshot: dict[str, AdapterStats] = field(default_factory=dict[str, AdapterStats])

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens per busy second, prefill included in the time; 0 before the first."""
        return self.generated_tokens / self.busy_seconds if self.busy_seconds else 0.0

    @property
    def prefill_tokens_per_second(self) -> float:
        """Prompt tokens per second of the steps that computed mostly prompts; 0 before the first."""
        return self.prefilled_tokens / self.prefill_seconds if self.prefill_seconds else 0.0

    @property
    def kv_occupancy(self) -> float:
        """Share of the token places that running samples have now, 0 to 1; cached sequences make room for them."""
        return self.kv_tokens / self.kv_capacity if self.kv_capacity else 0.0


class Meter:
    """Counts in the engine's thread; `stats` is a consistent picture."""

    def __init__(self) -> None:
        self.requests = self.failed = self.cancelled = self.refused = self.preempted = self.samples = 0
        self.prompt_tokens = self.prefilled = self.cached = self.generated = self.steps = 0
        self.busy = self.prefill_busy = 0.0
        self._all = Times()
        self._by_snapshot: dict[str, AdapterStats] = {}
        self._rows = Counter[str]()
        self._times: dict[str, Times] = {}

    def queued(self, handle: str, seconds: float) -> None:
        """A request has got its first place."""
        self._all.queue.append(seconds)
        self._times_of(handle).queue.append(seconds)

    def began(self, handle: str, seconds: float) -> None:
        """A request has got its first token."""
        self._all.first.append(seconds)
        self._times_of(handle).first.append(seconds)

    def went_on(self, handle: str, seconds: float) -> None:
        """A sample has got another token."""
        self._all.between.append(seconds)
        self._times_of(handle).between.append(seconds)

    def _times_of(self, handle: str) -> Times:
        return self._times.setdefault(handle, Times())

    def _adapter_stats(self, handle: str, holding: Holding) -> AdapterStats:
        times = self._times.get(handle) or Times()
        return replace(
            self._by_snapshot.get(handle, AdapterStats()),
            residence=holding.residence,
            bytes=holding.bytes,
            host_bytes=holding.host_bytes,
            under_way=holding.under_way,
            rows=self._rows[handle],
            queue_seconds=Spread.of(times.queue),
            first_token_seconds=Spread.of(times.first),
            token_seconds=Spread.of(times.between),
        )

    def forget(self, handle: str) -> None:
        """A snapshot is gone: what was counted of it alone is, too."""
        self._times.pop(handle, None)
        self._by_snapshot.pop(handle, None)
        self._rows.pop(handle, None)

    def answered(self, handle: str, *, samples: int, prompt: int, cached: int, generated: int) -> None:
        """Count a reply."""
        self.requests += 1
        self.samples += samples
        self.prompt_tokens += prompt
        own = self._by_snapshot.get(handle, AdapterStats())
        self._by_snapshot[handle] = replace(
            own,
            requests=own.requests + 1,
            generated_tokens=own.generated_tokens + generated,
            prompt_tokens=own.prompt_tokens + prompt,
            cached_tokens=own.cached_tokens + cached,
        )

    def seconds_for(self, samples: int) -> float:
        """About how long so many samples take, between 0.1 and 60."""
        rate = self.samples / self.busy if self.samples and self.busy else 1.0
        return round(min(60.0, max(0.1, samples / rate)), 1)

    def step(self, began: float, *, prefilled: int, drawn: int, rows: Iterable[tuple[str, int]] = ()) -> None:
        """Count a forward pass.

        Args:
            began: When it began, by `time.perf_counter`.
            prefilled: Prompt tokens that it computed.
            drawn: Samples that drew a token.
            rows: Tokens computed, by handle; one may come several times.
        """
        for handle, count in rows:
            self._rows[handle] += count
        seconds = time.perf_counter() - began
        self.steps += 1
        self.busy += seconds
        if prefilled > drawn:
            self.prefill_busy += seconds
        self.prefilled += prefilled
        self.generated += drawn

    def stats(self, holdings: Mapping[str, Holding]) -> SamplerStats:
        """What was counted.

        Args:
            holdings: How the snapshots that are served are held, by handle.
        """
        return SamplerStats(
            requests=self.requests,
            failed=self.failed,
            cancelled=self.cancelled,
            refused=self.refused,
            preempted=self.preempted,
            samples=self.samples,
            prompt_tokens=self.prompt_tokens,
            prefilled_tokens=self.prefilled,
            cached_tokens=self.cached,
            generated_tokens=self.generated,
            steps=self.steps,
            busy_seconds=self.busy,
            prefill_seconds=self.prefill_busy,
            occupancy=self.generated / self.steps if self.steps else 0.0,
            queue_seconds=Spread.of(self._all.queue),
            first_token_seconds=Spread.of(self._all.first),
            token_seconds=Spread.of(self._all.between),
            snapshots=tuple(holdings),
            by_snapshot={handle: self._adapter_stats(handle, holding) for handle, holding in holdings.items()},
        )
