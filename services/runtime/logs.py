"""Structured logs: one line an event, JSON in containers, readable on a terminal.

Bind `run`, `worker` and `group` as soon as they are known, so that one run can be followed through
every process. Never log a URL without `settings.redacted`, a token, or a whole config.
"""

import logging
import sys
from typing import Any

import structlog

from headrace.terminal import unescaped, visible

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def configure(process: str, level: str = "info", fmt: str = "auto") -> None:
    """Send structlog and the standard library's records to stderr in one format.

    `process` (gateway, rollout, reward, learner, …) is bound to every line.
    """
    console = fmt == "console" or (fmt == "auto" and sys.stderr.isatty())
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: Any = (
        structlog.dev.ConsoleRenderer() if console else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS.get(level, 20)),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(unescaped(sys.stderr))
    final: list[Any] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    # JSON escapes control characters; the console's format has colours of its own.
    final.append(_escape if console else structlog.processors.format_exc_info)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=[*final, renderer])
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(LEVELS.get(level, 20))
    # Their lines contain the URL of each request, which may have a key.
    for chatty in ("httpx", "httpcore", "httpx2", "httpcore2", "uvicorn.access"):
        logging.getLogger(chatty).setLevel(max(LEVELS.get(level, 20), logging.WARNING))
    structlog.contextvars.bind_contextvars(process=process)


def _escape(logger: Any, method: str, event: dict[str, Any]) -> dict[str, Any]:
    return {
        key: visible(value) if isinstance(value, str) else value for key, value in event.items()
    }


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """Return a logger whose events are short sentences and whose details are keyword arguments."""
    logger: structlog.stdlib.BoundLogger = structlog.get_logger(name)
    return logger
