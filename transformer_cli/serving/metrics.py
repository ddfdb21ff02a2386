"""What is counted while the service runs, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Of one service."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        disable_created_metrics()  # a second line for each number: when it was first counted
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "tx_requests", "Requests, by what came of them.", ["path", "status"], registry=registry
        )
        self._seconds = Histogram(
            "tx_request_seconds", "From a request's head to its answer.", ["path"], buckets=SECONDS, registry=registry
        )
        self._texts = Counter("tx_texts", "Texts that were translated.", registry=registry)
        self._batches = Histogram("tx_batch_texts", "Texts answered at once.", buckets=TEXTS, registry=registry)
        self._waiting = Gauge("tx_waiting_texts", "Texts that nobody works on yet.", registry=registry)

    def watch(self, n_waiting: Callable[[], float]) -> None:
        """Where the depth of the queue is to be read."""
        self._waiting.set_function(n_waiting)

    def request(self, path: str, status: int, seconds: float) -> None:
        self._requests.labels(path, status).inc()
        self._seconds.labels(path).observe(seconds)

    def translated(self, n_texts: int) -> None:
        self._texts.inc(n_texts)

    def taken(self, n_texts: int) -> None:
        self._batches.observe(n_texts)

    def text(self) -> bytes:
        return generate_latest(self._registry)
