"""What one worker tells whoever follows a run: each thing once, since the thousandth time says no
more."""

from typing import Any

from redis.exceptions import RedisError

from services.contracts.events import EventKind
from services.logs import get_logger
from services.store import Store

log = get_logger(__name__)


class Telling:
    """What `worker` has told about `run`. Never raises for a Redis that is away: the log has it."""

    def __init__(self, run: str, worker: str, store: Store) -> None:
        self.run = run
        self._worker = worker
        self._store = store
        self._told: set[str] = set()

    async def once(self, kind: str, message: str) -> None:
        """Add a `warning` event, unless one of this kind was added before."""
        await self._tell(kind, "warning", {"message": message})

    async def state(self, state: str, detail: str) -> None:
        """Add a `worker` event, unless the worker was in this state before."""
        data = {"worker": self._worker, "state": state, "detail": detail}
        await self._tell(f"state {state}", "worker", data)

    async def _tell(self, what: str, kind: EventKind, data: dict[str, Any]) -> None:
        if what in self._told:
            return
        self._told.add(what)
        try:
            await self._store.events.add(self.run, kind, data)
        except (RedisError, OSError) as error:
            log.warning("not told", **data, error=str(error))
