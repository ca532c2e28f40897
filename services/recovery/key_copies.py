"""Copies of API keys on the data volume: `keys/ID.json`, with a hash of the key, never the key.

A key that Redis has lost is accepted again after `headrace recover`. A revocation that Redis has
lost is repeated when the gateway starts, without a question.
"""

from collections.abc import Collection
from pathlib import Path

import anyio.to_thread
from pydantic import BaseModel, ValidationError

from services.contracts.records import ApiKeyRecord
from services.runtime.logs import get_logger
from services.store import Store
from services.volume import written_beside

log = get_logger(__name__)

FOLDER = "keys"


class KeyCopy(BaseModel):
    digest: str
    record: ApiKeyRecord
    revoked: bool = False


def keep_key(data: Path, copy: KeyCopy) -> None:
    """Write the copy of a key that Redis has. Raises OSError."""
    _write(data / FOLDER / f"{copy.record.id}.json", copy)


def mark_revoked(data: Path, digests: Collection[str]) -> None:
    """Mark the keys' copies as revoked, before Redis forgets the keys: otherwise they would look
    lost. A copy that cannot be written, as on a full disk, is deleted instead. Raises OSError if
    that fails, too."""
    for path, copy in _read(data):
        if copy.digest in digests and not copy.revoked:
            try:
                _write(path, copy.model_copy(update={"revoked": True}))
            except OSError:
                path.unlink(missing_ok=True)


async def lost_keys(store: Store, data: Path) -> list[KeyCopy]:
    """Return the unrevoked keys that Redis lacks. Raises RedisError."""
    accepted = await store.api_keys.digests()
    copies = await anyio.to_thread.run_sync(_read, data)
    return [copy for _, copy in copies if not copy.revoked and copy.digest not in accepted]


async def revoke_again(store: Store, data: Path) -> list[str]:
    """Revoke the keys whose revocation Redis has lost. Returns a sentence for each. Raises
    RedisError."""
    accepted = await store.api_keys.digests()
    copies = await anyio.to_thread.run_sync(_read, data)
    kept = [copy for _, copy in copies if copy.revoked and copy.digest in accepted]
    await store.api_keys.remove([copy.digest for copy in kept])
    return [f"API key {copy.record.name} ({copy.record.id}) is revoked again" for copy in kept]


async def align_keys(store: Store, data: Path) -> None:
    """Make the copies match the keys that Redis has, and those that were revoked. Raises
    RedisError, OSError."""
    accepted = await store.api_keys.digests()
    for path, copy in _read(data):
        if not copy.revoked and copy.digest not in accepted:
            path.unlink(missing_ok=True)
        accepted.pop(copy.digest, None)
    for digest, record in accepted.items():
        if record is not None:
            keep_key(data, KeyCopy(digest=digest, record=record))


def _write(path: Path, copy: KeyCopy) -> None:
    with written_beside(path) as beside:
        beside.write_text(copy.model_dump_json() + "\n")


def _read(data: Path) -> list[tuple[Path, KeyCopy]]:
    copy = []
    for path in sorted((data / FOLDER).glob("[!.]*.json")):
        try:
            copy.append((path, KeyCopy.model_validate_json(path.read_bytes())))
        except (ValidationError, OSError) as error:
            log.warning("a key's copy cannot be read", file=str(path), reason=str(error))
    return copy
