"""Chains by id: one record each, changed as a whole, and the list of open chains."""

from collections.abc import Callable

from services.contracts.chains import ChainRecord
from services.store.errors import Gone
from services.store.keys import CHAINS, OPEN_CHAINS
from services.store.scripts import StorePart
from services.store.unreadable import as_text, read_json


class Chains(StorePart):
    """Calls about chains. The steps of a chain are ordinary runs."""

    async def add(self, record: ChainRecord) -> None:
        await self._change(record.id, "", record)

    async def get(self, id: str) -> ChainRecord | None:
        """Return a chain by id, or None. An unreadable chain is logged and treated as missing."""
        text = await self._redis.hget(CHAINS, id)
        return read_json(ChainRecord, f"chain {id}", text) if text is not None else None

    async def all(self) -> list[ChainRecord]:
        """Return all chains, newest first. O(chains)."""
        texts = await self._redis.hgetall(CHAINS)
        read = [read_json(ChainRecord, f"chain {as_text(i)}", text) for i, text in texts.items()]
        chains = [record for record in read if record is not None]
        return sorted(chains, key=lambda record: (record.created, record.id), reverse=True)

    async def ids(self) -> list[str]:
        """Return the ids of all chains. O(chains), without their records."""
        return [as_text(id) for id in await self._redis.hkeys(CHAINS)]

    async def open(self) -> list[str]:
        """Return the ids of the chains that are not over."""
        return sorted(as_text(id) for id in await self._redis.smembers(OPEN_CHAINS))

    async def change(
        self, id: str, to: Callable[[ChainRecord], ChainRecord]
    ) -> tuple[ChainRecord, ChainRecord]:
        """Change a chain with the pure function `to`. Returns the chain before and after. Raises
        Gone if the chain is missing or cannot be read."""
        while True:
            text = await self._redis.hget(CHAINS, id)
            record = read_json(ChainRecord, f"chain {id}", text) if text is not None else None
            if text is None or record is None:
                raise Gone(f"there is no chain {id} any more")
            changed = to(record)
            if await self._change(id, text, changed):
                return record, changed

    async def delete(self, id: str) -> None:
        text = await self._redis.hget(CHAINS, id)
        if text is not None:
            await self._change(id, text, None)

    async def _change(self, id: str, old: bytes | str, new: ChainRecord | None) -> bool:
        text = new.model_dump_json() if new else ""
        listed = int(new is not None and not new.state.over)
        return bool(await self._scripts.run("change_chain", [id, old, text, listed]))
