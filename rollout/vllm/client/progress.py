"""Counters of a vLLM server, and whether it makes progress. Pure: the clock is an argument.

A server that passes its health check but samples nothing hangs. Its leases must lapse, so that
another worker gets the tasks.
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

_LINE = rb"^vllm:(?:%s)(?:\{[^}]*\})? ([0-9.eE+]+)$"
_TOKENS = re.compile(_LINE % b"generation_tokens_total", re.M)
_UNFINISHED = re.compile(_LINE % b"num_requests_running|num_requests_waiting", re.M)


class Counters(NamedTuple):
    """Sums over all engines of a server."""

    tokens: int
    """Sampled since it started."""
    unfinished: int
    """Sequences that run or wait."""


def read_counters(metrics: bytes) -> Counters:
    return Counters(_sum(_TOKENS, metrics), _sum(_UNFINISHED, metrics))


def _sum(counter: re.Pattern[bytes], metrics: bytes) -> int:
    return sum(int(float(value)) for value in counter.findall(metrics))


@dataclass
class TokenProgress:
    """Watches the token counter. `limit` is how many seconds it may stand still while there is
    work."""

    limit: float
    tokens: int = 0
    moved_at: float | None = None
    looked_at: float | None = None

    def observe(self, now: float, tokens: int, generating: int, updating: bool) -> bool:
        """Return whether to renew the leases of generating groups at time `now` (seconds).

        A lower `tokens` (the server restarted) is progress too. Without work, or during a weight
        update, the counter may stand still. A gap between two calls (this process was stopped, its
        machine slept) does not count.
        """
        if self.looked_at is not None and now - self.looked_at > self.limit / 2:
            self.moved_at = now
        self.looked_at = now
        if self.moved_at is None or tokens != self.tokens or generating == 0 or updating:
            self.tokens = tokens
            self.moved_at = now
            return True
        return False

    def stalled(self, now: float) -> bool:
        """Whether the counter has stood still for longer than `limit`."""
        return self.moved_at is not None and now - self.moved_at > self.limit


@dataclass
class Rate:
    """Tokens per second between two readings of the counter."""

    tokens: int | None = None
    at: float = 0.0
    per_second: float = 0.0

    def observe(self, now: float, tokens: int) -> float:
        """Return the rate since the last reading; 0 for the first reading and after a restart."""
        if self.tokens is None or tokens < self.tokens or now <= self.at:
            self.per_second = 0.0
        else:
            self.per_second = (tokens - self.tokens) / (now - self.at)
        self.tokens, self.at = tokens, now
        return self.per_second
