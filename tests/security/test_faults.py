"""Faults that have no other place: see the matrix in docs/reliability.md."""

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from headrace.cli import client
from headrace.cli.events import Event
from learner.checkpoints.checkpoint_reader import verify
from services.contracts.records import RunState
from tests.integration.gateway.servers import GatewayProcess, RedisServer, upload
from tests.integration.launch.conditions import eventually
from tests.integration.learner import torch_worker
from tests.integration.learner.conftest import placed, stored
from tests.integration.learner.test_runs import SFT, add_sums, ended, submit
from tests.security.failing_disk import FAILS

LONGER = SFT | {"training": SFT["training"] | {"max_steps": 60}}


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


async def test_a_gateway_that_hangs_is_named_stops_no_run_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "ANSWER", 0.5)
    monkeypatch.setattr(client, "QUIET", 0.5)
    with placed(tmp_path) as place:
        gateway = GatewayProcess(place.data, place.redis_url)
        api = client.Gateway(gateway.url, key=gateway.key)
        async with stored(place) as store:
            await add_sums(store, place.data)
            await submit(store, "first", LONGER)
            place.learner()
            gateway.freeze()
            with pytest.raises(client.Away, match=r"has not answered for 0\.5 s: it hangs"):
                api.get("/v1/runs")
            followed = api.events("first")
            assert next(followed) == f"lost the gateway at {gateway.url}; trying again"
            assert (await ended(store, "first")).state is RunState.SUCCEEDED
        monkeypatch.undo()
        gateway.thaw()
        seen = [one.data.get("state") for one in followed if isinstance(one, Event)]
        assert seen[-1] == "succeeded"
        assert gateway.stop() == 0


def test_the_gateway_reports_a_failing_disk_and_goes_on(redis_url: str, tmp_path: Path) -> None:
    fails = tmp_path / "fails"
    module = ("tests.security.failing_disk", "services.gateway")
    gateway = GatewayProcess(tmp_path / "data", redis_url, module=module, **{FAILS: str(fails)})
    rows = b'{"prompt": "1+1", "answer": "2"}\n'
    with httpx.Client(base_url=gateway.url, headers=gateway.headers) as api:
        fails.touch()
        refused = upload(api, "sums", rows)
        assert refused.status_code == 507
        assert refused.json()["detail"] == "the data volume cannot be used: Input/output error"
        assert api.get("/v1/datasets").json()["datasets"] == []
        fails.unlink()
        assert upload(api, "sums", rows).status_code == 201
    assert gateway.stop() == 0


async def test_a_disk_that_fails_pauses_the_run_which_goes_on_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = tmp_path / "fails"
    fails.touch()
    monkeypatch.setenv(FAILS, str(fails))
    with placed(tmp_path) as place:
        async with stored(place) as store:
            await add_sums(store, place.data)
            await submit(store, "first", SFT)
            place.learner("tests.security.failing_disk", "learner.rank")

            async def paused() -> str:
                record = await store.runs.get("first")
                return record.reason if record and record.state is RunState.PAUSED else ""

            reason = await torch_worker.eventually(paused)
            assert reason.startswith("cannot write datasets/sums/tokens/")
            assert "Input/output error; see the kernel's log, and repair the disk" in reason
            fails.unlink()
            record = await ended(store, "first")
        assert record.state is RunState.SUCCEEDED, record.reason
        assert record.checkpoint is not None
        assert verify(place.data / record.checkpoint).step == record.committed_step
