"""Waits for programs in the sandbox until they end or reach a limit: above all the limit on wall
time, from which waits for a CPU are subtracted.
"""

import time
from collections.abc import Sequence

from reward.sandbox.limits import Limits
from reward.sandbox.running_program import RunningProgram
from reward.sandbox.usage import own_delay

_TICK = 0.02
"""Seconds between two measurements of a program's use."""
_WINDOW = 2.0
"""Seconds. A longer wait for a CPU at a stretch counts as the program's own time: the waits of
several threads must not add up."""


class Watch:
    """Watches programs that run side by side: their time, and by `RunningProgram.exceeded` their
    memory and processes."""

    def __init__(self, running: Sequence[RunningProgram], limits: Limits) -> None:
        self._running = running
        self._limits = limits
        self._waited = 0.0

    def until_the_end(self) -> tuple[str, float]:
        """Wait until the first program has ended, or a limit is reached. Return the limit, or an
        empty string, and the seconds of waiting for a CPU."""
        began = before = time.monotonic()
        delayed, unclaimed = own_delay(), 0.0
        while True:
            allowed = self._limits.wall_seconds + self._waited
            left = began + min(allowed, self._limits.latest_seconds) - time.monotonic()
            if self._running[0].wait(min(_TICK, max(0.0, left))):
                return "", self._waited
            now, until_now = time.monotonic(), own_delay()
            unclaimed = min(_WINDOW, unclaimed + now - before)
            delays = sum(program.look() for program in self._running) + until_now - delayed
            self._waited += min(delays, unclaimed)
            unclaimed -= min(delays, unclaimed)
            before, delayed = now, until_now
            if limit := self._limit(now - began):
                return limit, self._waited

    def _limit(self, elapsed: float) -> str:
        for program in self._running:
            if exceeded := program.exceeded(self._limits):
                return exceeded
        if elapsed - self._waited >= self._limits.wall_seconds:
            return "time_limit"
        return "starved" if elapsed >= self._limits.latest_seconds else ""
