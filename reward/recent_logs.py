"""The newest lines that the reward service has logged. The service has no access to Redis, so the
gateway comes for them."""

import secrets
from collections import deque

from services.contracts.logs import RecentLines, WrittenLine
from services.runtime.log_lines import KEPT, LogLines


class RecentLogs:
    """Numbers the lines of this process, and keeps the newest."""

    def __init__(self, lines: LogLines) -> None:
        self._source = lines
        self._start = secrets.token_hex(4)
        self._kept: deque[WrittenLine] = deque(maxlen=KEPT)
        self._count = 0

    def after(self, start: str, number: int) -> RecentLines:
        """Return the lines from `number` on, or all kept lines if `start` is another start of this
        process."""
        for line in self._source.take():
            self._kept.append(line)
            self._count += 1
        first = self._count - len(self._kept)
        skipped = max(0, number - first) if start == self._start else 0
        return RecentLines(start=self._start, next=self._count, lines=[*self._kept][skipped:])
