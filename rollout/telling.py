"""Warnings to whoever follows a run: the first of each kind, since the thousandth says no more."""

from redis.exceptions import RedisError

from services.logs import get_logger
from services.store import Store

log = get_logger(__name__)


class Telling:
    """What one worker has told about one run."""

    def __init__(self, run: str, store: Store) -> None:
        self._run = run
        self._store = store
        self._told: set[str] = set()

    async def once(self, kind: str, message: str) -> None:
        """Add a `warning` event, unless one of this kind was added before. Never raises for a
        Redis that is away: the log has the message, too."""
        if kind in self._told:
            return
        self._told.add(kind)
        try:
            await self._store.events.add(self._run, "warning", {"message": message})
        except (RedisError, OSError) as error:
            log.warning("not told", run=self._run, message=message, error=str(error))
