"""The ranks that a node runs now, as it agrees with the learner's other nodes through Redis."""

import asyncio
import os
import secrets
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from redis.exceptions import RedisError

from learner.settings import LearnerSettings
from learner.supervise.one_node import RankStart
from services.runtime.logs import get_logger
from services.settings import EXIT_SETTINGS
from services.store import Store
from services.store.at_start import cannot_use
from services.store.insight import lock_token
from services.store.runs.ranks import LAPSE_SECONDS, Agreement, Node

log = get_logger(__name__)

LOG_SECONDS = 10.0
"""Seconds between two log lines about what this node waits for."""


@asynccontextmanager
async def joined(settings: LearnerSettings, ranks: int) -> AsyncIterator["SeveralNodes"]:
    """Join the nodes of this learner. Raises SystemExit if Redis cannot be used."""
    store = Store.from_url(settings.redis_url.get_secret_value())
    try:
        try:
            await store.ping()
        except (RedisError, OSError) as error:
            sys.stderr.write(f"error: {cannot_use(settings, error)}\n")
            raise SystemExit(EXIT_SETTINGS) from None
        yield SeveralNodes(settings, ranks, store)
    finally:
        await store.close()


class SeveralNodes:
    """A learner on several hosts. Its ranks meet in Redis, which has a password."""

    def __init__(self, settings: LearnerSettings, ranks: int, store: Store) -> None:
        token = lock_token(socket.gethostname(), os.getpid(), time.time())
        self._node = Node(settings.learner_node, settings.learner_nodes, token, ranks)
        self._pool = settings.pool
        self._meetings = store.rank_meetings
        self._alive_file = settings.alive_file
        self._candidate = ""
        self._logged = -LOG_SECONDS

    async def agree(self, running: RankStart | None, ended: str) -> RankStart | None:
        """Return the agreed start (see `Nodes`). If Redis does not answer, the running ranks
        continue."""
        self._candidate = self._candidate or secrets.token_hex(16)
        runs = running.id if running else ""
        try:
            async with asyncio.timeout(LAPSE_SECONDS / 2):
                now = await self._meetings.join(
                    self._pool, self._node, running=runs, ended=ended, candidate=self._candidate
                )
        except (RedisError, OSError) as error:
            self._say("Redis does not answer", reason=str(error))
            return running
        if not now.start:
            self._say_who_is_missing(now)
            self._is_well()
            return None
        self._candidate = ""
        if self._node.number > 0:
            self._is_well()
        if now.start == runs:
            return running
        first = sum(now.ranks[: self._node.number])
        where = f"redis:{now.start}"
        return RankStart(now.start, first, self._node.ranks, sum(now.ranks), where, {})

    async def leave(self) -> None:
        try:
            await self._meetings.leave(self._pool, self._node)
        except (RedisError, OSError) as error:
            log.warning("the other nodes wait for this one", reason=str(error))

    def _is_well(self) -> None:
        """Touch the alive file. Rank 0 does this itself while it holds the pool."""
        if self._alive_file is not None:
            self._alive_file.touch()

    def _say_who_is_missing(self, now: Agreement) -> None:
        missing = [number for number, ranks in enumerate(now.ranks) if not ranks]
        if now.holder:
            host, pid, *_ = now.holder.split(":")
            self._say("another process is this node of the learner", host=host, pid=pid)
        elif missing:
            self._say("waiting for the learner's other nodes", missing=missing)

    def _say(self, event: str, **details: object) -> None:
        if time.monotonic() - self._logged >= LOG_SECONDS:
            self._logged = time.monotonic()
            log.warning(event, node=self._node.number, nodes=self._node.count, **details)
