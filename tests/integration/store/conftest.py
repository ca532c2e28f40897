"""A real Redis with an installation's durability, emptied for every test."""

import os
import subprocess
from collections.abc import AsyncIterator, Iterator

import pytest
import redis
from redis.asyncio import Redis

from services.launch.redis import Listening, find_server, servers_here, write_config
from services.runtime.process import die_with
from services.store import Store
from tests.integration.store.scene import Scene


@pytest.fixture(scope="package")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("redis")
    at = Listening(folder, folder / "redis.sock")
    server = subprocess.Popen(
        [find_server(servers_here()), write_config(at)],
        stdout=subprocess.DEVNULL,
        preexec_fn=die_with(os.getpid()),
    )
    url = at.url("")
    patient = redis.retry.Retry(redis.backoff.ConstantBackoff(0.05), 2000)
    with redis.Redis.from_url(url, retry=patient) as client:
        client.ping()
    yield url
    server.kill()
    server.wait()


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
