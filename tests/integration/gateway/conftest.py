"""A real Redis that tests may stop, and the real gateway over HTTP."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.recovery.lost_writes import require_complete
from services.store import Store
from tests import forked_cli
from tests.integration.gateway.servers import (
    GatewayProcess,
    Headrace,
    InStore,
    RedisServer,
    upload,
)

_SHARED: list[tuple[GatewayProcess, RedisServer]] = []
"""The gateway and the Redis of the fixtures `gateway` and `redis_server`, while they run."""


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
    _SHARED.append((process, redis_server))
    yield process
    _SHARED.clear()
    process.stop()


@pytest.fixture(autouse=True, scope="module")
def another_gateway_would_start() -> Iterator[None]:
    """Check that each module leaves the records whose copies are in the shared data folder: a
    gateway that starts there ends if Redis has lost one, in a test of another module."""
    yield
    for process, redis_server in _SHARED:

        async def check(store: Store, data: Path = process.data) -> None:
            await require_complete(store, data, str(data))

        _with_store(redis_server, check)


@pytest.fixture
def api(gateway: GatewayProcess) -> Iterator[httpx.Client]:
    with gateway.client() as client:
        yield client


@pytest.fixture
def in_store(redis_server: RedisServer) -> InStore:
    """Runs an action on the store, as another process would."""
    return lambda action: _with_store(redis_server, action)


def _with_store(redis_server: RedisServer, action: Callable[[Store], Awaitable[object]]) -> None:
    async def run() -> None:
        store = Store.from_url(redis_server.url)
        try:
            await action(store)
        finally:
            await store.close()

    asyncio.run(run())


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder that passes for a model: it has a config.json, and a tokenizer's."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text("{}")
    return folder


@pytest.fixture
def sums(api: httpx.Client) -> None:
    """The dataset `sums`, of 40 rows."""
    rows = (b'{"question": "%d+1", "answer": "%d"}\n' % (n, n + 1) for n in range(40))
    upload(api, "sums", b"".join(rows))


@pytest.fixture
def submit(api: httpx.Client, model: Path, sums: None) -> Iterator[Any]:
    """Submits the grpo recipe with overrides. All its runs are cancelled afterwards."""
    ids: list[str] = []

    def send(
        config: dict[str, Any] | None = None, headers: dict[str, str] | None = None, **request: Any
    ) -> httpx.Response:
        base: dict[str, Any] = {"model": {"path": str(model)}, "data": {"dataset": "sums"}}
        response = api.post(
            "/v1/runs",
            json={"recipe": "grpo", "config": base | (config or {}), **request},
            headers=headers,
        )
        if response.status_code == 201:
            ids.append(response.json()["id"])
        return response

    yield send
    for run in ids:
        api.post(f"/v1/runs/{run}/cancel")


@pytest.fixture
def environment(gateway: GatewayProcess) -> dict[str, str]:
    return os.environ | {"HEADRACE_GATEWAY_URL": gateway.url, "HEADRACE_DATA": str(gateway.data)}


@pytest.fixture
def headrace(environment: dict[str, str], tmp_path: Path) -> Headrace:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return forked_cli.headrace(arguments, environment, tmp_path)

    return run


@pytest.fixture
def headrace_process(environment: dict[str, str], tmp_path: Path) -> Headrace:
    """For commands that compute with torch, whose threads no fork has, or import what a test
    names in PYTHONPATH."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "headrace", *arguments],
            env=environment | {"PYTHONPATH": os.getcwd()},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            # Merging an adapter imports torch, on a machine that may be busy.
            timeout=200,
        )

    return run


@pytest.fixture
def rows(tmp_path: Path, api: httpx.Client) -> Path:
    """A file of rows, which the dataset `cli-sums` has, too."""
    path = tmp_path / "cli-sums.jsonl"
    path.write_text("".join(f'{{"question": "{n}+1", "answer": "{n + 1}"}}\n' for n in range(40)))
    assert upload(api, "cli-sums", path.read_bytes()).is_success
    return path
