"""How much may be under way at a sampler: beyond it clients are told to come back, before anything is computed."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tinker_actors.gateway.refusals import RefusalError

_RECENT = 256
_LONGEST = 30


class Crowding:
    """Counts what is under way, by model and by tenant.

    Args:
        of_model: Samples that may be under way at a model's sampler.
        of_tenant: Samples of one tenant among them.
        tokens: Prompt tokens that all requests under way may hold together, which bounds their memory.
    """

    def __init__(self, *, of_model: int = 16_384, of_tenant: int = 8_192, tokens: int = 8_000_000) -> None:
        self._of_model, self._of_tenant, self._tokens = of_model, of_tenant, tokens
        self._models: Counter[str] = Counter()
        self._tenants: Counter[tuple[str, str]] = Counter()
        self._held = 0
        self._ended: deque[tuple[float, int]] = deque(maxlen=_RECENT)

    def enter(self, model: str, tenant: str, *, samples: int, tokens: int) -> Callable[[], None]:
        """Count a request in.

        Returns:
            What counts it out again; more than once does no more.

        Raises:
            RefusalError: With 429 and `Retry-After`: too much is under way. With 400: it would never be let in.
        """
        most = min(self._of_model, self._of_tenant)
        if samples > most:
            raise RefusalError(400, f"num_samples is {samples}; at most {most} may be under way", code="too_many")
        if tokens > self._tokens:
            raise RefusalError(400, f"the prompt has {tokens} tokens; at most {self._tokens} can be", code="too_many")
        if self._tenants[model, tenant] + samples > self._of_tenant:
            under_way = self._tenants[model, tenant]
            raise self._full(f"the tenant has {under_way} samples under way, of {self._of_tenant} at most", samples)
        if self._models[model] + samples > self._of_model:
            raise self._full(f"{model} has as many samples under way as its sampler takes", samples)
        if self._held + tokens > self._tokens:
            raise self._full("requests under way hold as many prompt tokens as the service takes", samples)
        self._models[model] += samples
        self._tenants[model, tenant] += samples
        self._held += tokens
        inside = [(model, tenant, samples, tokens)]
        return lambda: self._leave(*inside.pop()) if inside else None

    def _leave(self, model: str, tenant: str, samples: int, tokens: int) -> None:
        self._models[model] -= samples
        self._tenants[model, tenant] -= samples
        if not self._tenants[model, tenant]:
            del self._tenants[model, tenant]
        self._held -= tokens
        self._ended.append((time.monotonic(), samples))

    @contextmanager
    def within(self, model: str, tenant: str, *, samples: int, tokens: int) -> Iterator[None]:
        """Count a request in as long as the block lasts; errors as of `enter`."""
        leave = self.enter(model, tenant, samples=samples, tokens=tokens)
        try:
            yield
        finally:
            leave()

    def under_way(self, model: str) -> int:
        """Samples under way at a model's sampler."""
        return self._models[model]

    def _full(self, what: str, samples: int) -> RefusalError:
        seconds = self._seconds_for(samples)
        return RefusalError(
            429,
            f"{what}; ask again in {seconds} s",
            code="overloaded",
            headers={"Retry-After": str(seconds)},
        )

    def _seconds_for(self, samples: int) -> int:
        """About how long so many samples take, from how many ended of late."""
        if len(self._ended) < 2:
            return 1
        seconds = time.monotonic() - self._ended[0][0]
        rate = sum(count for _, count in self._ended) / max(seconds, 0.001)
        return max(1, min(_LONGEST, math.ceil(samples / rate)))
