"""Checks that a Redis keeps what it acknowledges."""

from typing import Any

from redis.asyncio import RedisCluster
from redis.exceptions import ResponseError

SAFE = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}


class UnsafeRedis(RuntimeError):
    """This Redis may lose or evict what it has acknowledged."""


async def check_durability(redis: Any) -> None:
    """Raise UnsafeRedis unless acknowledged writes survive a power cut and nothing is evicted. A
    managed Redis that hides its configuration is trusted."""
    for name, wanted in SAFE.items():
        try:
            values = await _setting(redis, name)
        except ResponseError:
            return
        for text in values or [""]:
            if text != wanted:
                raise UnsafeRedis(
                    f"Redis has {name} {text or 'unset'}, which may lose acknowledged work: "
                    f"set it to {wanted}, or set HEADRACE_ALLOW_UNSAFE_REDIS=true to accept "
                    "the loss"
                )


async def _setting(redis: Any, name: str) -> list[str]:
    """Return the values of a setting: one for a server, one for each master of a cluster."""
    if isinstance(redis, RedisCluster):
        await redis.ping()
        masters = redis.get_primaries()
        replies = [await redis.config_get(name, target_nodes=m) for m in masters]
    else:
        replies = [await redis.config_get(name)]
    values = [next(iter(reply.values()), b"") for reply in replies]
    return [value.decode() if isinstance(value, bytes) else str(value) for value in values]
