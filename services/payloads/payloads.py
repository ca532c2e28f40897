"""Reads and writes payloads, in Redis or as a file with a reference in Redis.

An attempt writes its file, then completes with the reference. Later the reference leaves Redis,
then the file is deleted. A process that dies between two steps leaves a file without a held attempt
and without a reference; the next sweep deletes it.
"""

import re
from collections.abc import Collection

import anyio.to_thread
import xxhash

from services.contracts.groups.payload import (
    Damaged,
    Owner,
    PayloadFile,
    owner_of,
    parse_reference,
    payload_name,
    reference,
)
from services.payloads.places import PayloadPlace
from services.runtime.logs import get_logger
from services.store import Store

log = get_logger(__name__)

_UNFINISHED = re.compile(r"/\.([^/]+\.group)\.[^/]*$")


class Payloads:
    """The payloads of an installation's groups."""

    def __init__(self, store: Store, place: PayloadPlace, above: int = 0) -> None:
        """Payloads of more than `above` bytes do not go into Redis."""
        self._trajectories, self._place, self.above = store.trajectories, place, above

    async def stored(self, owner: Owner, payload: bytes | memoryview) -> bytes:
        """Return the bytes with which a group is completed: its payload, or a reference to its
        durable file. Raises OSError if the volume is full, and PlaceAway."""
        if len(payload) <= self.above:
            return bytes(payload)
        digest = await anyio.to_thread.run_sync(xxhash.xxh3_64_hexdigest, payload)
        file = PayloadFile(payload_name(owner, digest), len(payload))
        await self._place.write(file.name, payload)
        return reference(file)

    async def read(self, stored: bytes) -> bytes:
        """Return the payload. Raises Damaged, also if its file is gone, and PlaceAway."""
        file = parse_reference(stored)
        if file is None:
            return stored
        try:
            payload = await self._place.read(file.name)
        except ConnectionError:
            raise
        except FileNotFoundError:
            raise Damaged(f"its payload {file.name} is gone") from None
        except OSError as error:
            raise Damaged(f"its payload {file.name} cannot be read: {error}") from error
        if len(payload) != file.bytes:
            raise Damaged(f"its payload {file.name} has {len(payload)} bytes, not {file.bytes}")
        digest = await anyio.to_thread.run_sync(xxhash.xxh3_64_hexdigest, payload)
        if digest != file.xxh3:
            raise Damaged(f"its payload {file.name} has checksum {digest}, not {file.xxh3}")
        return payload

    async def sweep(self, run: str) -> int:
        """Delete the files of a run that are no longer needed. Returns their number."""
        return await self._delete_unneeded(await self._place.names(run))

    async def discard(self, stored: bytes) -> None:
        """Delete the file of an attempt that has ended, unless its group was accepted."""
        if file := parse_reference(stored):
            await self._delete_unneeded([file.name])

    async def runs(self) -> list[str]:
        """Return all runs that have files, and possibly others."""
        return await self._place.runs()

    def free_bytes(self) -> int | None:
        """Return the free bytes of the place, or None for an unbounded place."""
        return self._place.free_bytes()

    async def _delete_unneeded(self, names: Collection[str]) -> int:
        owners = {name: owner for name in names if (owner := owner_of(finished(name)))}
        if not owners:
            return 0
        run = next(iter(owners.values())).run
        pairs = [(owner.task, owner.attempt) for owner in owners.values()]
        needed = await self._trajectories.needed(run, pairs)
        gone = [name for name, yes in zip(owners, needed, strict=True) if not yes]
        if gone:
            await self._place.delete(gone)
            log.info("payloads deleted that nobody needs", run=run, files=len(gone))
        return len(gone)


def finished(name: str) -> str:
    """Return the final name of a half-written file. Other names stay as they are."""
    return _UNFINISHED.sub(r"/\1", name)
