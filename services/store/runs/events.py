"""Events of a run: a bounded stream."""

import json
import time
from collections.abc import Mapping
from typing import Any

from services.contracts.events import Event, EventKind
from services.contracts.strict_json import decode
from services.store.errors import Unreadable
from services.store.keys import run_key
from services.store.scripts import StorePart
from services.store.unreadable import reading

KEPT = 20_000


class Events(StorePart):
    """Calls about events: workers, learner and gateway append; the page and the command line
    read."""

    async def add(self, run: str, kind: EventKind, data: dict[str, Any]) -> None:
        fields: dict[Any, Any] = {"kind": kind, "time": time.time(), "data": json.dumps(data)}
        await self._redis.xadd(run_key(run, "events"), fields, maxlen=KEPT, approximate=True)

    async def read(self, run: str, after: str, wait: float = 0, count: int = 1000) -> list[Event]:
        """Return up to `count` events after id `after` ("0": from the start). Waits up to `wait`
        seconds for the first event; does not block if `wait` is 0."""
        key = run_key(run, "events")
        block = max(1, int(wait * 1000)) if wait else None
        if block is not None:
            await self._redis.xread({key: after}, count=1, block=block)
        entries: Any = await self._redis.xrange(key, min=f"({after}", count=count)
        return [parsed_event(entry, fields) for entry, fields in entries]

    async def read_back(self, run: str, until: str | None, count: int) -> list[Event]:
        """Return the newest `count` events up to and with the id `until` (None: all), the newest
        first."""
        key = run_key(run, "events")
        entries: Any = await self._redis.xrevrange(key, max=until or "+", count=count)
        return [parsed_event(entry, fields) for entry, fields in entries]

    async def read_several(self, places: Mapping[str, str], count: int) -> dict[str, list[Event]]:
        """Return up to `count` events of each run after the run's id in `places`. One round
        trip."""
        pipe = self._redis.pipeline(transaction=False)
        for run, after in places.items():
            pipe.xrange(run_key(run, "events"), min=f"({after}", count=count)
        replies: list[Any] = await pipe.execute() if places else []
        return {
            run: [parsed_event(entry, fields) for entry, fields in entries]
            for run, entries in zip(places, replies, strict=True)
        }

    async def has(self, run: str, id: str) -> bool:
        """Whether the event `id` is still kept."""
        return bool(await self._redis.xrange(run_key(run, "events"), min=id, max=id))

    async def before_newest(self, run: str, count: int) -> str:
        """Return the id after which `read` begins with the newest `count` events."""
        entries: Any = await self._redis.xrevrange(run_key(run, "events"), count=count + 1)
        return entries[-1][0].decode() if len(entries) > count else "0"


def parsed_event(entry: bytes, fields: dict[bytes, bytes]) -> Event:
    """Parse an entry of the stream. An unreadable entry becomes a warning."""
    id = entry.decode()
    try:
        with reading(f"event {id}"):
            return Event.model_validate(
                {
                    "id": id,
                    "time": float(fields[b"time"]),
                    "kind": fields[b"kind"].decode(),
                    "data": decode(fields[b"data"]) or {},
                }
            )
    except Unreadable as error:
        at = int(id.partition("-")[0]) / 1000
        return Event(id=id, time=at, kind="warning", data={"message": str(error)})
