"""How much one request, one tenant and one address may ask for."""

from __future__ import annotations

import ipaddress
import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Annotated, TypeAlias

from pydantic import Field
from starlette.types import Scope

from tinker_actors.gateway.refusals import RefusalError
from tinker_actors.scheduler.sections import Section

MIB = 1 << 20

POLLS = frozenset(
    f"/api/v1/{name}"
    for name in (
        "client/config",
        "client/dynamic_config",
        "retrieve_future",
        "retrieve_futures",
        "session_heartbeat",
        "telemetry",
    )
)
"""What clients ask again and again by themselves: it has allowances of its own, so that waiting for results, which the
Tinker client does once for every request under way, doesn't use up those for asking."""

LARGE = ("/api/v1/forward_backward", "/jobs/v1/uploads")
"""Where bodies may be large, by the beginning of the path: batches, and rows of data."""

USUAL = ("/api/v1/asample", "/api/v1/forward", "/v1/", *POLLS)
"""Where they hold prompts, or what clients gather; all others name things and set options."""


Bytes: TypeAlias = Annotated[int, Field(ge=1)]
Seconds: TypeAlias = Annotated[float, Field(gt=0)]
PerSecond: TypeAlias = Annotated[float, Field(gt=0)]
Count: TypeAlias = Annotated[int, Field(ge=1)]


class Limits(Section):
    """What is refused. Sizes are bytes; a tenant or address that asks too often gets 429 and is told for how long."""

    url_bytes: Bytes = 8 << 10
    """Path and query."""
    header_bytes: Bytes = 32 << 10
    """All headers of a request."""
    body_bytes: Bytes = 16 * MIB
    """A body, as sent, to the paths in `USUAL`."""
    large_body_bytes: Bytes = 64 * MIB
    """One to the paths in `LARGE`."""
    small_body_bytes: Bytes = 256 << 10
    """One that holds no prompts, batches or rows; what it says may be kept, and shown in lists."""
    bodies_bytes: Bytes = 1024 * MIB
    """All bodies under way together."""
    json_depth: Count = 64
    """How deep arrays and objects may be nested."""
    body_idle: Seconds = 20.0
    """Between two pieces of a body."""
    body_grace: Seconds = 30.0
    """In which the whole of a body may come however slowly; beyond it 64 KiB a second are needed."""
    send_idle: Seconds = 60.0
    """In which a reader must take a piece of an answer."""
    requests: PerSecond = 500.0
    """Of one tenant."""
    requests_burst: Count = 2000
    """Of one tenant that was quiet."""
    polls: PerSecond = 2000.0
    """Of one tenant, of those in `POLLS`."""
    polls_burst: Count = 8000
    address_requests: PerSecond = 3000.0
    """Of one address (of IPv6, one /64), whoever asks."""
    address_burst: Count = 12000
    concurrent: Count = 2048
    """Requests under way of one tenant."""
    concurrent_polls: Count = 8192
    """Of those in `POLLS`, which are apart."""

    def body_of(self, path: str) -> int:
        """Bytes that a body to this path may have."""
        if path.startswith(LARGE):
            return self.large_body_bytes
        return self.body_bytes if path.startswith(USUAL) else min(self.small_body_bytes, self.body_bytes)


class Buckets:
    """A token bucket for each of those who ask: `rate` a second, and `burst` at once after a pause.

    Args:
        rate: Tokens that come in a second; may be set anew.
        burst: Tokens that there are at most.
        most: How many who ask are kept in mind; beyond it, who was quiet longest starts anew.
        clock: Seconds.
    """

    def __init__(
        self, rate: float, burst: float, *, most: int = 16384, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.rate, self._burst, self._most, self._clock = rate, burst, most, clock
        self._held: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, who: str) -> float:
        """Take a token.

        Returns:
            0.0 if there was one, else the seconds until there is.
        """
        now = self._clock()
        tokens, at = self._held.pop(who, (self._burst, now))
        tokens = min(self._burst, tokens + (now - at) * self.rate)
        wait = 0.0 if tokens >= 1 else (1 - tokens) / self.rate
        self._held[who] = (tokens if wait else tokens - 1, now)
        if len(self._held) > self._most:
            self._held.popitem(last=False)
        return wait


class Limiter:
    """Keeps count of who asks for how much.

    Args:
        limits: What is refused.
        clock: Seconds.
    """

    def __init__(self, limits: Limits | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits = limits or Limits()
        self._addresses = Buckets(limits.address_requests, limits.address_burst, clock=clock)
        self._tenants = Buckets(limits.requests, limits.requests_burst, clock=clock)
        self._polling = Buckets(limits.polls, limits.polls_burst, clock=clock)
        self._under_way: Counter[tuple[str, bool]] = Counter()
        self._held_bytes = 0

    def check_head(self, scope: Scope) -> None:
        """Refuse what is too large before its body, and an address that asks too often.

        Raises:
            RefusalError: 414, 431 or 429.
        """
        limits = self.limits
        url = len(scope.get("raw_path") or scope["path"]) + len(scope["query_string"])
        if url > limits.url_bytes:
            raise RefusalError(414, f"the URL has {url} bytes; {limits.url_bytes} are taken", code="url_too_long")
        size = sum(len(name) + len(value) for name, value in scope["headers"])
        if size > limits.header_bytes:
            detail = f"the headers have {size} bytes; {limits.header_bytes} are taken"
            raise RefusalError(431, detail, code="headers_too_large")
        if scope.get("client") and (wait := self._addresses.take(_address(scope["client"][0]))):
            raise _too_often("this address", limits.address_requests, wait)

    @contextmanager
    def one_of(self, tenant: str, path: str) -> Generator[None]:
        """Count a request of a tenant while it is under way.

        Raises:
            RefusalError: 429: the tenant asks too often, or has too many under way.
        """
        limits, polls = self.limits, path in POLLS
        if wait := (self._polling if polls else self._tenants).take(tenant):
            raise _too_often(f"tenant {tenant!r}", limits.polls if polls else limits.requests, wait)
        most = limits.concurrent_polls if polls else limits.concurrent
        if self._under_way[tenant, polls] >= most:
            detail = f"tenant {tenant!r} has {most} requests under way; more are not taken"
            raise RefusalError(429, detail, code="too_many_at_once", headers={"Retry-After": "1"})
        self._under_way[tenant, polls] += 1
        try:
            yield
        finally:
            self._under_way[tenant, polls] -= 1
            if not self._under_way[tenant, polls]:
                del self._under_way[tenant, polls]

    @contextmanager
    def holding(self, size: int) -> Generator[None]:
        """Count the bytes of a body while it is under way.

        Raises:
            RefusalError: 503: all bodies together are too many bytes.
        """
        if self._held_bytes + size > self.limits.bodies_bytes:
            raise RefusalError(
                503, "too many large requests are under way", code="overloaded", headers={"Retry-After": "1"}
            )
        self._held_bytes += size
        try:
            yield
        finally:
            self._held_bytes -= size


def _too_often(who: str, rate: float, wait: float) -> RefusalError:
    return RefusalError(
        429,
        f"{who} asks more than {rate:g} times a second; try again in {wait:.3f} s",
        code="rate_limited",
        headers={"Retry-After": str(math.ceil(wait))},
    )


def _address(host: str) -> str:
    """What counts as one address: of IPv6 a /64, of which one host may have all."""
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    return str(address.ipv4_mapped or ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))
