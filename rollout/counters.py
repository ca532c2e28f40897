"""What a vLLM server counts, out of the text of its `/metrics`. Pure."""

import re
from typing import NamedTuple

_LINE = rb"^vllm:(?:%s)(?:\{[^}]*\})? ([0-9.eE+]+)$"
_TOKENS = re.compile(_LINE % b"generation_tokens_total", re.M)
_UNFINISHED = re.compile(_LINE % b"num_requests_running|num_requests_waiting", re.M)


class Counters(NamedTuple):
    """What a server says of its work."""

    tokens: int
    """Sampled since it started: moves exactly while it makes progress."""
    unfinished: int
    """Sequences that it works on or that wait in it."""


def read_counters(metrics: bytes) -> Counters:
    """The counters in Prometheus' text, over all engines of the server."""
    return Counters(_sum(_TOKENS, metrics), _sum(_UNFINISHED, metrics))


def _sum(counter: re.Pattern[bytes], metrics: bytes) -> int:
    return sum(int(float(value)) for value in counter.findall(metrics))
