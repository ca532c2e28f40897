"""A real reward service that asks a real server over HTTP. The test sets the server's replies."""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from tests.integration.reward.conftest import Service
from tests.upstream import Answer, Upstream

KEYS = {"strict": "secret-1", "haiku": "secret-2", "big": "secret-3"}


def nothing(path: str, body: Any) -> Answer:
    return 404, {"path": path}


@pytest.fixture(scope="package")
def upstream() -> Iterator[Upstream]:
    server = Upstream(nothing)
    yield server
    server.close()


@pytest.fixture(scope="package")
def asking(tmp_path_factory: pytest.TempPathFactory, upstream: Upstream) -> Iterator[Service]:
    """A service that asks the upstream."""
    service = Service(
        tmp_path_factory.mktemp("asking"),
        *("--max-queued-items", "8", "--remote-at-once", "4"),
        f"--verifiers=haiku={upstream.url}/v1/score",
        f"--judges=strict={upstream.url}/v1",
        f"--judges=mild={upstream.url}/v1",
        f"--reward-models=rm={upstream.url}",
        f"--teachers=big={upstream.url}",
        f"--endpoint-keys={json.dumps(KEYS)}",
    )
    yield service
    service.end()


@pytest.fixture
async def client(asking: Service, upstream: Upstream) -> AsyncIterator[httpx.AsyncClient]:
    await asking.ready()
    upstream.asked.clear()
    async with asking.client() as client:
        yield client
