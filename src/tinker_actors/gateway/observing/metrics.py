"""What the gateway counts and times of its requests, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_NO_ROUTE = "(none)"


class HttpMetrics:
    """Counts requests. Labels take few values: a route's template, never a path; no ids, no tenants.

    Args:
        registry: Where the metrics are kept; one of its own for each gateway, as several may run in a process.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._requests = Counter(
            "tinker_actors_http_requests",
            "Requests answered.",
            ("method", "route", "status"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "tinker_actors_http_request_duration_seconds",
            "From a request's head to the end of its answer; long polls and streams wait on purpose.",
            ("method", "route"),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._admission = Histogram(
            "tinker_actors_http_admission_seconds",
            "From a request's head until its route begins: the key, the limits, and taking in the body.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._refused = Counter(
            "tinker_actors_http_refused",
            "Requests refused, by the code in the answer.",
            ("reason",),
            registry=self.registry,
        )
        self.in_flight = Gauge(
            "tinker_actors_http_requests_in_flight",
            "Requests under way, long polls among them.",
            registry=self.registry,
        )

    def admitted(self, seconds: float) -> None:
        """A request has reached the routes."""
        self._admission.observe(seconds)

    def answered(self, method: str, route: str | None, status: int, seconds: float, refused: str) -> None:
        """A request is done with.

        Args:
            method: Its method.
            route: The template of the route that answered; None if none did.
            status: Of the answer; 499 if the client went away before it.
            seconds: That it took.
            refused: Why it was refused, or nothing.
        """
        method, route = method if method in _METHODS else "other", route or _NO_ROUTE
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)
        if refused:
            self._refused.labels(refused).inc()
