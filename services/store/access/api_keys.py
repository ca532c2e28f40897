"""API keys besides the installation's first key: their names and hashes, never the keys."""

from collections.abc import Sequence

from services.contracts.records import ApiKeyRecord
from services.store.keys import API_KEYS
from services.store.scripts import StorePart
from services.store.unreadable import as_text, read_json


class ApiKeys(StorePart):
    """Calls about API keys: one hash from a key's digest to its record. A request with such a key
    costs one HGET."""

    async def add(self, digest: str, record: ApiKeyRecord) -> None:
        """Accept the key of this digest from now on."""
        await self._redis.hset(API_KEYS, digest, record.model_dump_json())

    async def find(self, digest: str) -> ApiKeyRecord | None:
        text = await self._redis.hget(API_KEYS, digest)
        return read_json(ApiKeyRecord, "an API key", text) if text else None

    async def list(self) -> list[ApiKeyRecord]:
        """Return the records of all keys, oldest first."""
        records = [record for record in (await self.digests()).values() if record]
        return sorted(records, key=lambda record: (record.created, record.id))

    async def digests(self) -> dict[str, ApiKeyRecord | None]:
        """Return all keys by their digests; None for a record that cannot be read."""
        records = await self._redis.hgetall(API_KEYS)
        return {as_text(d): read_json(ApiKeyRecord, "an API key", r) for d, r in records.items()}

    async def remove(self, digests: Sequence[str]) -> None:
        if digests:
            await self._redis.hdel(API_KEYS, *digests)
