"""Events and sampled answers that a worker adds to a run. Each event is added once; repeats only
raise a count."""

from collections import Counter
from typing import Any

from redis.exceptions import RedisError

from services.contracts.events import EventKind
from services.contracts.groups.sampled_answer import SampledAnswer
from services.runtime.logs import get_logger
from services.store import Store

log = get_logger(__name__)


class RunEvents:
    """Events of `worker` in `run`. Never raises while Redis is unreachable: the log has the
    event."""

    def __init__(self, run: str, worker: str, store: Store) -> None:
        self.run = run
        self._worker = worker
        self._store = store
        self._added: set[str] = set()
        self._counts: Counter[str] = Counter()

    async def once(self, kind: str, message: str) -> None:
        """Add a `warning` event. Do nothing if an event of this kind was added before."""
        await self._add(kind, "warning", {"message": message})

    async def counted(self, kind: str, message: str) -> None:
        """Count an event of this kind. Add a `warning` event for the first, the 10th, the 100th and
        so on."""
        self._counts[kind] += 1
        count = self._counts[kind]
        if 10 ** (len(str(count)) - 1) == count:
            so_far = f" ({count:,} so far)" if count > 1 else ""
            await self.once(f"{kind} {count}", message + so_far)

    async def state(self, state: str, detail: str, usual_seconds: float | None = None) -> None:
        """Add a `worker` event. Do nothing if the worker was in this state before.
        `usual_seconds`: how long the state lasts, if that is known."""
        data: dict[str, Any] = {"worker": self._worker, "state": state, "detail": detail}
        if usual_seconds is not None:
            data["usual_seconds"] = usual_seconds
        await self._add(f"state {state}", "worker", data)

    async def judged(self, answers: list[SampledAnswer]) -> None:
        try:
            await self._store.judged.add(self.run, answers)
        except (RedisError, OSError) as error:
            log.warning("judged answers are lost", error=str(error))

    async def _add(self, key: str, kind: EventKind, data: dict[str, Any]) -> None:
        if key in self._added:
            return
        self._added.add(key)
        try:
            await self._store.events.add(self.run, kind, data)
        except (RedisError, OSError) as error:
            log.warning("an event is lost", **data, error=str(error))
