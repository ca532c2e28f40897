"""Keeps the newest lines that a process has logged, for readers elsewhere.

A line is a message with its details; secrets are masked before it is kept. When lines come faster
than they are taken, the oldest go, and a line says how many.
"""

import logging
import socket
import sys
import threading
import traceback
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import structlog

from headrace.terminal import visible
from services.contracts.logs import Level, WrittenLine
from services.runtime.secrets import masked, secret_values

KEPT = 1000
"""Lines that wait to be taken."""
LONGEST = 4000
"""Characters of a line. A longer one loses its middle."""
_SHOWN_ELSEWHERE = ("event", "level", "timestamp", "process", "run", "worker", "exc_info")


class LogLines(logging.Handler):
    """Takes what this process logs, as lines of `process`. Safe from any thread."""

    def __init__(self, process: str, secrets: Iterable[str] = ()) -> None:
        super().__init__()
        self.process, self.host = process, socket.gethostname()
        self.arrived = threading.Event()
        """Set when there are lines to take."""
        self._secrets = secret_values(secrets)
        self._lines: deque[WrittenLine] = deque()
        self._dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record of structlog or of the standard library."""
        try:
            source = getattr(record, "source", None)
            # Another process, such as vLLM, may have gone on to another run than this one knows.
            known = {} if source else structlog.contextvars.get_contextvars()
            details: dict[str, Any] = dict(known)
            if isinstance(record.msg, dict):
                details |= record.msg
            else:
                details["event"] = record.getMessage()
            text = worded(details)
            if trace := _traceback(details.get("exc_info") or record.exc_info):
                text += f"\n{trace}"
            self.add(text, record.levelno, details.get("run"), record.created, source)
        except Exception:
            # A line that cannot be kept is on stderr all the same.
            self.handleError(record)

    def add(
        self, text: str, level: int, run: Any = None, time: float = 0, process: str | None = None
    ) -> None:
        """Keep a line. `process`: if another process than this one wrote it."""
        line = WrittenLine(
            time=time,
            process=process or self.process,
            host=self.host,
            level=named_level(level),
            text=visible(shortened(masked(text, self._secrets))),
            run=run if isinstance(run, str) else None,
        )
        with self.lock or threading.Lock():
            self._lines.append(line)
            self._limit()
        self.arrived.set()

    def take(self) -> list[WrittenLine]:
        """Return the lines that wait, and forget them."""
        with self.lock or threading.Lock():
            self.arrived.clear()
            lines, dropped = list(self._lines), self._dropped
            self._lines.clear()
            self._dropped = 0
        if dropped and lines:
            text = f"{dropped:,} earlier lines are left out here: they came too fast"
            left_out = {"text": text, "level": "warning", "process": self.process, "run": None}
            lines.insert(0, lines[0].model_copy(update=left_out))
        return lines

    def put_back(self, lines: Sequence[WrittenLine]) -> None:
        """Keep lines that were taken and could not be sent, before the later ones."""
        with self.lock or threading.Lock():
            self._lines.extendleft(reversed(lines))
            self._limit()

    def _limit(self) -> None:
        while len(self._lines) > KEPT:
            self._lines.popleft()
            self._dropped += 1


def worded(details: dict[str, Any]) -> str:
    """Return a message with its details as `name=value`."""
    shown = [f"{k}={v}" for k, v in details.items() if k not in _SHOWN_ELSEWHERE and v is not None]
    return "  ".join([str(details.get("event", "")), *shown])


def named_level(level: int) -> Level:
    """Return the level of this number, as in `logging`."""
    if level >= logging.ERROR:
        return "error"
    if level >= logging.WARNING:
        return "warning"
    return "info" if level >= logging.INFO else "debug"


def shortened(text: str) -> str:
    """Return `text` of at most LONGEST characters."""
    if len(text) <= LONGEST:
        return text
    half = LONGEST // 2 - 10
    return f"{text[:half]}\n[…]\n{text[-half:]}"


def _traceback(info: Any) -> str:
    if info is True:
        info = sys.exc_info()
    if isinstance(info, BaseException):
        return "".join(traceback.format_exception(info)).rstrip()
    if isinstance(info, tuple) and info[1] is not None:
        return "".join(traceback.format_exception(info[1])).rstrip()
    return ""
