"""Sends what a process logs to Redis, where the gateway reads it, on whatever host the process is.

A thread sends the lines of half a second at once. While Redis is away, the newest lines wait in
memory. Logging never waits for Redis, nor fails with Redis: stderr has every line.
"""

import asyncio
import logging
import sys
import threading
from types import TracebackType
from typing import Self

from services.runtime.log_lines import LogLines
from services.settings import Settings

GATHER_SECONDS = 0.5
AWAY_SECONDS = 5.0
LAST_SECONDS = 3.0
"""For the last lines of a process that ends."""


class ShippedLogs:
    """While it is entered, sends the lines of this process. The exception that ends the process is
    its last line."""

    def __init__(self, settings: Settings, process: str, pool: str | None = None) -> None:
        """`pool`: the pool that the process serves, if it serves one."""
        keys = (settings.api_key, settings.reward_key, settings.redis_password)
        self.lines = LogLines(process, [key.get_secret_value() for key in keys if key])
        self._url = settings.redis_url.get_secret_value()
        self._pool = pool
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._send_all, name="logs", daemon=True)

    def __enter__(self) -> Self:
        logging.getLogger().addHandler(self.lines)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception):
            record = {"event": "the process ends with an error", "exc_info": error}
            logger, level = logging.getLogger(), logging.ERROR
            self.lines.emit(logger.makeRecord("", level, "", 0, record, (), None))
        logging.getLogger().removeHandler(self.lines)
        self._ending.set()
        self.lines.arrived.set()
        self._thread.join(LAST_SECONDS)

    def _send_all(self) -> None:
        self.lines.arrived.wait()
        # Imported with the first line: the supervisor of the ranks starts without the store.
        from redis.exceptions import RedisError

        from services.store import Store

        with asyncio.Runner() as runner:
            store: Store | None = None
            while True:
                self.lines.arrived.wait()
                is_last = self._ending.wait(GATHER_SECONDS)
                lines = self.lines.take()
                try:
                    if lines:
                        store = store or Store.from_url(self._url)
                        runner.run(store.process_logs.add(lines, self._pool))
                except (RedisError, OSError):
                    self.lines.put_back(lines)
                    is_last = is_last or self._ending.wait(AWAY_SECONDS)
                    self.lines.arrived.set()
                except Exception as error:
                    # Later lines may be sent all the same.
                    sys.stderr.write(f"lines that the log lacks: {len(lines)} ({error!r})\n")
                if is_last:
                    break
            if store is not None:
                runner.run(store.close())
