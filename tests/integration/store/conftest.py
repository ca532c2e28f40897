"""A real Redis with an installation's durability, emptied for every test."""

from collections.abc import AsyncIterator, Iterator

import pytest
from redis.asyncio import Redis

from bench.fleet import durable_redis
from services.store import Store
from tests.integration.store.scene import Scene


@pytest.fixture(scope="package")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("redis")
    with durable_redis(folder, patience=100.0) as url:
        yield url


@pytest.fixture
async def raw(redis_url: str) -> AsyncIterator[Redis]:
    """A plain Redis client, to read or change keys behind the store."""
    client = Redis.from_url(redis_url)
    await client.flushall()
    yield client
    await client.aclose()


@pytest.fixture
async def store(raw: Redis, redis_url: str) -> AsyncIterator[Store]:
    store = Store.from_url(redis_url)
    yield store
    await store.close()


@pytest.fixture
def scene(store: Store, raw: Redis) -> Scene:
    return Scene(store, raw)
