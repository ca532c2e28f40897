"""The counters and gauges of `GET /metrics` (Prometheus). docs/metrics.md lists their names."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

# Seconds, from the time of a plain number to the longest deadline.
_BUCKETS = (1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)


class Metrics:
    """The metrics of one service, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.items = Counter(
            "headrace_reward_items",
            "Items with a verdict",
            ["verifier", "status"],
            registry=self.registry,
        )
        self.unjudged = Counter(
            "headrace_reward_unjudged",
            "Answers with reward 0 on which a built-in verifier raised an exception",
            ["verifier", "error"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "headrace_reward_item_seconds",
            "Time in a worker per item that came back",
            ["verifier"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.requests = Counter(
            "headrace_reward_requests", "Requests to /v1/score", ["code"], registry=self.registry
        )
        self.request_seconds = Histogram(
            "headrace_reward_request_seconds",
            "Time to answer one request to /v1/score, waiting included",
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.lost = Counter(
            "headrace_reward_workers_lost",
            "Worker processes that were killed at a deadline, or died by themselves",
            ["cause"],
            registry=self.registry,
        )

    def watch(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Publish the result of `read` at each scrape, as the gauge `headrace_reward_<name>`."""
        Gauge(f"headrace_reward_{name}", text, registry=self.registry).set_function(read)

    def render(self) -> bytes:
        return generate_latest(self.registry)
