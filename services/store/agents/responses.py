"""What the Responses API keeps of a session: its responses and conversations, in one hash for each
session, which expires with the session."""

from collections.abc import Mapping, Sequence
from typing import Literal, cast

from services.contracts.sessions import SessionName
from services.store.keys import responses_key
from services.store.scripts import StorePart

Keeping = Literal["kept", "elsewhere", "full"]
"""The result for new entries. `elsewhere`: the conversation ends at another message."""


class KeptResponses(StorePart):
    """Calls about the entries of one session. The gateway names the entries."""

    async def entries(self, session: SessionName) -> dict[str, bytes]:
        """Return all entries of a session."""
        entries = await self._redis.hgetall(responses_key(*session))
        return {name.decode(): value for name, value in entries.items()}

    async def present(self, session: SessionName, names: Sequence[str]) -> list[bool]:
        """Return which of these entries the session has."""
        async with self._redis.pipeline(transaction=False) as pipeline:
            for name in names:
                pipeline.hexists(responses_key(*session), name)
            return [bool(present) for present in await pipeline.execute()]

    async def first(self, session: SessionName, name: str, value: str) -> str:
        """Set the entry `name` to `value` unless it has a value. Return the value that it has."""
        async with self._redis.pipeline() as pipeline:
            pipeline.hsetnx(responses_key(*session), name, value)
            pipeline.hget(responses_key(*session), name)
            _, first = await pipeline.execute()
        return str(first.decode())

    async def keep(
        self,
        session: SessionName,
        entries: Mapping[str, bytes],
        conversation: str = "",
        before: str = "",
        after: str = "",
        *,
        are_items: bool = False,
    ) -> Keeping:
        """Keep entries, and move the end of `conversation` from `before` to `after`
        (response_keep.lua). `are_items`: the session's agent adds them without a turn, so they are
        refused if the session would have more bytes than it may."""
        run, attempt, index = session
        flat = [part for pair in entries.items() for part in pair]
        arguments = [index, conversation, before, after, int(are_items), *flat]
        names = {"run": run, "attempt": attempt, "index": str(index)}
        reply = await self._scripts.run("response_keep", arguments, **names)
        return cast(Keeping, reply.decode())

    async def forget(self, session: SessionName, *names: str) -> bool:
        """Delete entries. Returns False if the session has none of them."""
        return bool(await self._redis.hdel(responses_key(*session), *names))
