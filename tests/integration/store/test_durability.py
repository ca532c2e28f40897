"""A Redis that may lose acknowledged work, or that another version wrote, is refused by name."""

from pathlib import Path

import pytest
from redis.asyncio import Redis

from services.contracts.schema import SchemaMismatch
from services.launch import Stack, UpOptions
from services.settings import Settings
from services.store import Store, UnsafeRedis
from services.store.at_start import require_durable
from tests.integration.gateway.servers import RedisServer


async def test_a_redis_of_headrace_up_is_accepted(tmp_path: Path) -> None:
    with Stack(UpOptions(data=tmp_path, parts=frozenset({"redis"}))) as stack:
        store = Store.from_url(stack.redis_url)
        await store.check_durability()
        await store.close()


async def test_a_redis_that_may_lose_a_second_or_evict_keys_is_refused(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, fsync="everysec")
    server.start()
    store = Store.from_url(server.url)
    try:
        with pytest.raises(UnsafeRedis, match="appendfsync everysec"):
            await store.check_durability()
        async with Redis.from_url(server.url) as redis:
            await redis.config_set("appendfsync", "always")
            await store.check_durability()
            await redis.config_set("maxmemory-policy", "allkeys-lru")
        with pytest.raises(UnsafeRedis, match="maxmemory-policy allkeys-lru"):
            await store.check_durability()
    finally:
        await store.close()
        server.stop()


@pytest.fixture
async def newer(store: Store, raw: Redis) -> None:
    """Give Redis state of a newer schema."""
    await store.check_schema()
    await store.check_schema()
    assert await raw.get("headrace:schema") == b"1"
    await raw.set("headrace:schema", 2)


async def test_state_of_another_version_is_refused(newer: None, store: Store) -> None:
    with pytest.raises(SchemaMismatch, match="the state in Redis has schema 2, this process reads"):
        await require_durable(store, Settings())
