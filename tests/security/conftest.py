"""A real Redis, a real gateway and a real sandbox, of a module's own: its tests may break them."""

from collections.abc import Iterator

import pytest

from reward.sandbox.probe import probe
from reward.sandbox.running_program import SandboxError
from reward.sandbox.sandbox_host import Sandbox, SandboxOptions
from tests.integration.gateway.servers import GatewayProcess, RedisServer


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def gateway(
    tmp_path_factory: pytest.TempPathFactory, redis_server: RedisServer
) -> Iterator[GatewayProcess]:
    process = GatewayProcess(tmp_path_factory.mktemp("gateway") / "data", redis_server.url)
    yield process
    process.stop()


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    try:
        probe(SandboxOptions())
    except SandboxError as error:
        pytest.skip(str(error))
    found = Sandbox(SandboxOptions())
    yield found
    found.close()
