"""A real Redis of our own (some tests stop it) and the real gateway over HTTP."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import httpx
import pytest

from services.store import Store
from tests.integration.gateway.servers import GatewayProcess, InStore, RedisServer


@pytest.fixture(scope="package")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="package")
def gateway(
    tmp_path_factory: pytest.TempPathFactory, redis_server: RedisServer
) -> Iterator[GatewayProcess]:
    process = GatewayProcess(tmp_path_factory.mktemp("gateway") / "data", redis_server.url)
    yield process
    process.stop()


@pytest.fixture
def api(gateway: GatewayProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.url, timeout=30) as client:
        yield client


@pytest.fixture
def in_store(redis_server: RedisServer) -> InStore:
    """Do something in the store, as another process would."""

    async def run(action: Callable[[Store], Awaitable[object]]) -> None:
        store = Store.from_url(redis_server.url)
        try:
            await action(store)
        finally:
            await store.close()

    return lambda action: asyncio.run(run(action))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder that looks like a model to whoever only looks whether it is one."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder
