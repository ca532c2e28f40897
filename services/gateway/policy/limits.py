"""Limit how many calls of the policy may be open at once, and how many one API key may make. This
gateway counts in its memory."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

from redis.exceptions import RedisError

from services.gateway.openai.errors import SessionProblem
from services.gateway.settings import GatewaySettings

KEYS = 1024
"""Keys whose rates are remembered: the latest callers."""


class OpenCalls:
    """All open calls of this gateway. Each takes one of its connections to Redis."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._most, self._a_minute = settings.policy_calls, settings.policy_calls_a_minute
        self._allowances: dict[str, tuple[float, float]] = {}
        # For each key: the calls that it may make at once, and the time of that count.
        self._ending: set[asyncio.Task[None]] = set()
        self.of_worker: Counter[str] = Counter()
        """Open calls by the worker that answers."""

    def admit(self, key: str, now: float | None = None) -> None:
        """Count a call of an API key (its digest). Raises SessionProblem 429."""
        now = time.monotonic() if now is None else now
        most, rate = float(self._a_minute), self._a_minute / 60
        allowance, before = self._allowances.pop(key, (most, now))
        allowance = min(most, allowance + (now - before) * rate)
        self._allowances[key] = (allowance - 1 if allowance >= 1 else allowance, now)
        while len(self._allowances) > KEYS:
            self._allowances.pop(next(iter(self._allowances)))
        if allowance < 1:
            raise _later(
                f"this API key has made {self._a_minute} calls of the policy within a minute "
                "(the gateway's HEADRACE_POLICY_CALLS_A_MINUTE)",
                (1 - allowance) / rate,
            )

    @contextmanager
    def slot(self, worker: str) -> Iterator[None]:
        """Hold a place among the open calls during the block. Raises SessionProblem 429."""
        if self.of_worker.total() >= self._most:
            raise _later(
                f"{self._most} calls of the policy are open (the gateway's HEADRACE_POLICY_CALLS)",
                1,
            )
        self.of_worker[worker] += 1
        try:
            yield
        finally:
            self.of_worker[worker] -= 1
            self.of_worker += Counter()  # drop workers without calls

    def later(self, call: Coroutine[Any, Any, None]) -> None:
        """Make a Redis call in the background while the policy call ends. If Redis is away, the
        entry expires instead."""

        async def made() -> None:
            with contextlib.suppress(RedisError, OSError):
                await call

        task = asyncio.create_task(made())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


def _later(why: str, seconds: float) -> SessionProblem:
    return SessionProblem(
        HTTPStatus.TOO_MANY_REQUESTS,
        f"{why}: try again in a moment",
        code="rate_limit_exceeded",
        headers={"Retry-After": str(max(1, round(seconds)))},
    )
