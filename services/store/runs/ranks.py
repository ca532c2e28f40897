"""The nodes of a pool's learner, which start and end their ranks together, and a key-value store
for its ranks before they are connected."""

import secrets
from dataclasses import dataclass

from services.store.keys import pool_key
from services.store.scripts import StorePart

LAPSE_SECONDS = 10.0
"""A node that has not called for this long is gone."""
FORGET_SECONDS = 60
"""Seconds until keys expire that no node prolongs."""


@dataclass(frozen=True)
class Node:
    """One host of a learner, as its supervisor describes it."""

    number: int
    count: int
    """Number of nodes of this learner."""
    token: str
    """The token of this process, made by `lock_token`."""
    ranks: int


@dataclass(frozen=True)
class Agreement:
    """The present agreement of the nodes."""

    start: str
    """Id of the start whose ranks run; '' if no ranks run."""
    holder: str
    """Token of the process that this one waits for; '' for none. That process has the same number,
    or belongs to a learner with another count of nodes."""
    ranks: tuple[int, ...]
    """Ranks of each node; 0 for a node that has not called lately."""


class RankMeetings(StorePart):
    """Calls about nodes and ranks. A pool has two keys, which expire with the learner. A learner of
    one node uses neither."""

    async def join(
        self, pool: str, node: Node, *, running: str, ended: str, candidate: str
    ) -> Agreement:
        """Report that `node` is alive; must be called at least once in LAPSE_SECONDS. `running` and
        `ended` are the start whose ranks run on the node, and the last start whose ranks have ended
        there. `candidate` is a new id, for the start that may begin now."""
        states = [running, ended, candidate]
        start, holder, *ranks = await self._call(pool, node, node.ranks, states)
        return Agreement(start.decode(), holder.decode(), tuple(map(int, ranks)))

    async def leave(self, pool: str, node: Node) -> None:
        """Remove a node whose ranks have all ended."""
        await self._call(pool, node, 0, ["", "", ""])

    async def _call(self, pool: str, node: Node, ranks: int, states: list[str]) -> list[bytes]:
        lapse = int(LAPSE_SECONDS * 1000)
        arguments = [node.count, node.number, node.token, ranks, *states, lapse]
        reply: list[bytes] = await self._scripts.run("join", arguments, pool=pool)
        return reply

    async def put(self, pool: str, field: str, value: bytes) -> None:
        """Tell the other ranks `value` under `field`, which begins with the id of the start. All
        fields are forgotten FORGET_SECONDS after the last call."""
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hset(pool_key(pool, "ranks"), field, value)
            pipe.expire(pool_key(pool, "ranks"), FORGET_SECONDS)
            await pipe.execute()

    async def add(self, pool: str, field: str, amount: int) -> int:
        """Add to a number. Returns the sum."""
        arguments = [field, amount, secrets.token_hex(8), FORGET_SECONDS]
        return int(await self._scripts.run("add_number", arguments, pool=pool))

    async def get(self, pool: str, fields: list[str]) -> list[bytes | None]:
        values: list[bytes | None] = await self._redis.hmget(pool_key(pool, "ranks"), fields)
        return values

    async def delete(self, pool: str, field: str) -> bool:
        """Delete a value. Returns False if it was missing."""
        return bool(await self._redis.hdel(pool_key(pool, "ranks"), field))
