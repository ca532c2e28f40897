"""Reads which runs have changed: a stream that names a run after each change of its record.

`StorePart._announce` writes it, in a call of its own. A process that dies between a change and its
announcement leaves the change unannounced, so a reader also rereads runs now and then.
"""

from typing import Any

from services.store.errors import Unreadable
from services.store.keys import CHANGES
from services.store.scripts import StorePart
from services.store.unreadable import as_text, reading, report

START = "0-0"
"""The place before the first entry."""
STREAM = "the stream of changed runs"
PIECE = 1000
"""Entries read in one round trip."""


class RunChanges(StorePart):
    """Calls that read the stream."""

    async def newest(self) -> str:
        """Return the place after the newest entry."""
        try:
            with reading(STREAM):
                entries: Any = await self._redis.xrevrange(CHANGES, count=1)
                return as_text(entries[0][0]) if entries else START
        except Unreadable as error:
            report(STREAM, str(error))
            return START

    async def after(self, place: str) -> tuple[set[str], str] | None:
        """Return the runs that changed after `place`, and the place after them. Return None if any
        run may have changed: Redis has no entry of that place any more, or the stream cannot be
        read."""
        try:
            with reading(STREAM):
                return await self._after(place)
        except Unreadable as error:
            report(STREAM, str(error))
            return None

    async def _after(self, place: str) -> tuple[set[str], str] | None:
        runs: set[str] = set()
        while True:
            # The entry of `place` itself comes first, unless it is trimmed or lost.
            entries: Any = await self._redis.xrange(CHANGES, min=place, count=PIECE)
            if place != START:
                if not entries or as_text(entries[0][0]) != place:
                    return None
                entries = entries[1:]
            runs |= {as_text(fields[b"run"]) for _, fields in entries}
            place = as_text(entries[-1][0]) if entries else place
            if len(entries) < PIECE - 1:
                return runs, place
