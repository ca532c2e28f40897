"""Faults that have no other place: see the matrix in docs/reliability.md."""

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.integration.gateway.servers import GatewayProcess, RedisServer
from tests.integration.launch.conditions import eventually

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def redis_url(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "redis").mkdir()
    server = RedisServer(tmp_path / "redis")
    server.start()
    yield server.url
    server.stop()


def test_an_upload_that_was_cut_off_leaves_nothing_and_may_be_repeated(
    redis_url: str, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    gateway = GatewayProcess(data, redis_url)
    rows = b'{"prompt": "1+1", "answer": "2"}\n' * 1000
    part = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
    body = part + rows + b"\r\n--b--\r\n"
    address = urlsplit(gateway.url)
    with socket.create_connection((address.hostname, address.port)) as client:
        key = gateway.headers["Authorization"]
        client.sendall(
            f"POST /v1/datasets HTTP/1.1\r\nHost: {address.netloc}\r\nAuthorization: {key}\r\n"
            f"Content-Type: multipart/form-data; boundary=b\r\nContent-Length: {len(body)}\r\n"
            "\r\n".encode()
            + body[: len(body) // 2]
        )
        assert gateway.stop(signal.SIGKILL) == -signal.SIGKILL

    gateway = GatewayProcess(data, redis_url)
    try:
        with httpx.Client(base_url=gateway.url, headers=gateway.headers) as api:
            assert api.get("/v1/datasets").json()["datasets"] == []
            assert [*data.glob("datasets/*/*")] == []
            files = {"file": ("a.jsonl", rows)}
            assert api.post("/v1/datasets", files=files).status_code == 201
            eventually(lambda: len(api.get("/v1/datasets").json()["datasets"]) == 1)
            assert os.listdir(data / "datasets")
    finally:
        gateway.stop()
