"""Copies of API keys on the data volume: `keys/ID.json`, with a hash of the key, never the key.

A key that Redis has lost is accepted again after `headrace recover`. If Redis has lost that a key
was revoked, the gateway revokes it again when it starts, and asks nobody.
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
    """One file."""

    digest: str
    record: ApiKeyRecord
    revoked: bool = False


def keep_key(data: Path, copy: KeyCopy) -> None:
    """Write the copy of a key that Redis has. Raises OSError."""
    _write(data / FOLDER / f"{copy.record.id}.json", copy)


def mark_revoked(data: Path, digests: Collection[str]) -> None:
    """Say in the copies that these keys are revoked, before Redis forgets them: otherwise they
    would look lost. A full disk takes no new file: then the copy goes. Raises OSError."""
    for path, copy in _read(data):
        if copy.digest in digests and not copy.revoked:
            try:
                _write(path, copy.model_copy(update={"revoked": True}))
            except OSError:
                path.unlink(missing_ok=True)


async def lost_keys(store: Store, data: Path) -> list[KeyCopy]:
    """Keys that were not revoked and that Redis does not have. Raises RedisError."""
    accepted = await store.api_keys.digests()
    copies = await anyio.to_thread.run_sync(_read, data)
    return [one for _, one in copies if not one.revoked and one.digest not in accepted]


async def revoke_again(store: Store, data: Path) -> list[str]:
    """Revoke the keys of which Redis has lost that they were revoked. Returns a sentence for each.
    Raises RedisError."""
    accepted = await store.api_keys.digests()
    copies = await anyio.to_thread.run_sync(_read, data)
    found = [one for _, one in copies if one.revoked and one.digest in accepted]
    await store.api_keys.remove([one.digest for one in found])
    return [f"API key {one.record.name} ({one.record.id}) is revoked again" for one in found]


async def align_keys(store: Store, data: Path) -> None:
    """Have copies of exactly the keys that Redis has, and of those that were revoked. Raises
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
    found = []
    for path in sorted((data / FOLDER).glob("[!.]*.json")):
        try:
            found.append((path, KeyCopy.model_validate_json(path.read_bytes())))
        except (ValidationError, OSError) as error:
            log.warning("a key's copy cannot be read", file=str(path), reason=str(error))
    return found
