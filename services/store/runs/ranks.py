"""The nodes of a pool's learner, which start and end their ranks together, and what its ranks tell
each other before they are connected."""

import secrets
from dataclasses import dataclass

from services.store.keys import pool_key
from services.store.scripts import StorePart

LAPSE_SECONDS = 10.0
"""A node that has not called for this long is gone."""
FORGET_SECONDS = 60
"""What no node has prolonged for this long expires."""


@dataclass(frozen=True)
class Node:
    """One host of a learner, as its supervisor presents it."""

    number: int
    count: int
    """Nodes of this learner."""
    token: str
    """Of this process, as `lock_token` makes it."""
    ranks: int


@dataclass(frozen=True)
class Agreement:
    """What the nodes do now."""

    start: str
    """Id of the start whose ranks run; '': none."""
    holder: str
    """Token of the process that this one waits for: it has the same number, or belongs to a learner
    with another count of nodes. '': none."""
    ranks: tuple[int, ...]
    """Ranks of each node; 0 for one that has not called lately."""


class RankMeetings(StorePart):
    """Two keys per pool, which expire with the learner. A learner of one node uses neither."""

    async def join(
        self, pool: str, node: Node, *, running: str, ended: str, candidate: str
    ) -> Agreement:
        """Say that `node` lives; at least once in LAPSE_SECONDS. `running` and `ended`: the start
        whose ranks run on it, and the last whose ranks have ended there. `candidate`: a new id, for
        the start that may begin now."""
        states = [running, ended, candidate]
        start, holder, *ranks = await self._call(pool, node, node.ranks, states)
        return Agreement(start.decode(), holder.decode(), tuple(map(int, ranks)))

    async def leave(self, pool: str, node: Node) -> None:
        """`node` has no ranks, and will have none."""
        await self._call(pool, node, 0, ["", "", ""])

    async def _call(self, pool: str, node: Node, ranks: int, states: list[str]) -> list[bytes]:
        lapse = int(LAPSE_SECONDS * 1000)
        arguments = [node.count, node.number, node.token, ranks, *states, lapse]
        reply: list[bytes] = await self._scripts.run("join", arguments, pool=pool)
        return reply

    async def put(self, pool: str, field: str, value: bytes) -> None:
        """Tell the other ranks `value` under `field`, which begins with the id of the start."""
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hset(pool_key(pool, "ranks"), field, value)
            pipe.expire(pool_key(pool, "ranks"), FORGET_SECONDS)
            await pipe.execute()

    async def add(self, pool: str, field: str, amount: int) -> int:
        """Add to a number; returns the sum."""
        arguments = [field, amount, secrets.token_hex(8), FORGET_SECONDS]
        return int(await self._scripts.run("add_number", arguments, pool=pool))

    async def get(self, pool: str, fields: list[str]) -> list[bytes | None]:
        """The value under each field; None where no rank has put one."""
        found: list[bytes | None] = await self._redis.hmget(pool_key(pool, "ranks"), fields)
        return found

    async def delete(self, pool: str, field: str) -> bool:
        """Take a value back. False where there is none."""
        return bool(await self._redis.hdel(pool_key(pool, "ranks"), field))
