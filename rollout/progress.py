"""Whether a vLLM server makes progress: what a lease is renewed by. Pure: the clock is handed in.

A server that answers its health check but samples nothing is hung; its leases must lapse, so
that another worker gets the draws.
"""

from dataclasses import dataclass


@dataclass
class Progress:
    """Watches a token counter. `limit` is how long it may stand still while work is there."""

    limit: float
    tokens: int = 0
    moved_at: float | None = None
    looked_at: float | None = None

    def observe(self, now: float, tokens: int, generating: int, updating: bool) -> bool:
        """Whether leases of generating groups deserve to be renewed at time `now` (seconds).

        `tokens` may fall (the server restarted): that is movement too. Nothing to generate, or
        a weight update under way, is no standstill. Time in which nobody looked (this process was
        stopped, its machine asleep) is not counted against the server.
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
        """Whether nothing has moved for `limit` seconds."""
        return self.moved_at is not None and now - self.moved_at > self.limit


@dataclass
class Rate:
    """Tokens per second between two readings of a counter."""

    tokens: int | None = None
    at: float = 0.0
    per_second: float = 0.0

    def observe(self, now: float, tokens: int) -> float:
        """The rate since the last reading; 0 for the first one and after a restart."""
        if self.tokens is None or tokens < self.tokens or now <= self.at:
            self.per_second = 0.0
        else:
            self.per_second = (tokens - self.tokens) / (now - self.at)
        self.tokens, self.at = tokens, now
        return self.per_second
