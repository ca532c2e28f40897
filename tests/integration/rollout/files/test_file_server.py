"""The file server of a host: its clients, its worker, and how other hosts find it."""

import asyncio
import errno
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from bench.fleet import durable_redis
from rollout import file_server
from rollout.settings import RolloutSettings
from services.contracts.records import WorkerRecord
from services.runtime import probe
from services.runtime.api_key import authorization
from services.runtime.tasks import end
from services.store import Store
from tests.integration.rollout.files.hosts import CONTENT, KEY, NAME, PEER_KEY, Host
from tests.ports import own_ports


def settings_of(host: Host) -> RolloutSettings:
    """Settings of a worker that serves the files of `host`, at its own port."""
    (port,) = own_ports("127.0.0.1", 1)
    return RolloutSettings(
        peer_url=f"http://127.0.0.1:{port}", api_key=SecretStr(KEY), data=host.root
    )


async def test_files_are_served_only_to_clients_with_the_hosts_key(
    gateway: Host, tmp_path: Path
) -> None:
    (gateway.root / "api-key").write_text(KEY)
    async with Host(gateway.root).listening() as host, httpx.AsyncClient(base_url=host.url) as api:
        at = f"/v1/files/{NAME}"
        for headers in ({}, authorization(KEY), authorization("hr-wrong")):
            refused = await api.get(at, headers=headers)
            assert (refused.status_code, refused.headers["connection"]) == (401, "close")
        api.headers.update(authorization(PEER_KEY))
        assert (await api.get(at)).content == CONTENT
        for path in ("api-key", "runs/r/weights/../../../api-key", "runs/r/weights/.hidden"):
            assert (await api.get(f"/v1/files/{path}")).status_code == 403
        assert (await api.get("/v1/files/runs/r/weights/none")).status_code == 404
        assert (await api.post(at)).status_code == 404
        assert await asyncio.to_thread(probe.ask, f"{host.url}/healthz") == (200, "")


async def test_a_child_that_cannot_be_started_is_started_later(
    gateway: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_server, "TAKE_OVER_SECONDS", 0.01)
    settings = settings_of(gateway)
    again = asyncio.Event()
    tries = 0

    async def no_memory(*_: object, **__: object) -> None:
        nonlocal tries
        tries += 1
        if tries == 2:
            again.set()
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(asyncio, "create_subprocess_exec", no_memory)
    worker = asyncio.create_task(file_server.keep_serving(settings))
    try:
        async with asyncio.timeout(60):
            await again.wait()
    finally:
        await end([worker])


async def test_a_host_whose_name_is_not_known_yet_serves_once_it_is(
    gateway: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_server, "TAKE_OVER_SECONDS", 0.01)
    settings = settings_of(gateway)
    resolve, unknown = socket.getaddrinfo, [socket.EAI_AGAIN, socket.EAI_NONAME]

    def resolved(*name: Any, **kind: Any) -> Any:
        if unknown:
            raise socket.gaierror(unknown.pop(), "not known")
        return resolve(*name, **kind)

    started = asyncio.Event()

    async def child(*_: object) -> None:
        started.set()

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    monkeypatch.setattr(file_server, "_child", child)
    worker = asyncio.create_task(file_server.keep_serving(settings))
    try:
        async with asyncio.timeout(60):
            await started.wait()
    finally:
        await end([worker])
    assert not unknown


async def test_one_worker_of_a_host_serves_files_and_another_takes_over(
    gateway: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_server, "TAKE_OVER_SECONDS", 0.05)
    settings = settings_of(gateway)
    workers = [asyncio.create_task(file_server.keep_serving(settings)) for _ in range(2)]
    async with httpx.AsyncClient(
        base_url=str(settings.peer_url), headers=authorization(PEER_KEY)
    ) as api:
        for worker in workers:
            async with asyncio.timeout(100):
                while True:
                    with suppress(httpx.TransportError):
                        assert (await api.get(f"/v1/files/{NAME}")).content == CONTENT
                        break
                    await asyncio.sleep(0.02)
            await end([worker])
    elsewhere = settings.model_copy(update={"peer_url": "http://192.0.2.1:8004"})
    await asyncio.wait_for(file_server.keep_serving(elsewhere), 60)


async def test_heartbeats_say_which_hosts_have_a_file(tmp_path: Path) -> None:
    with durable_redis(tmp_path) as url:
        store = Store.from_url(url)
        try:
            for name, address, files in (
                ("one", "http://10.0.0.1:8004", [NAME]),
                ("two", "http://10.0.0.2:8004", []),
                ("three", None, [NAME]),
            ):
                record = WorkerRecord(
                    id=name, pool="default", host=name, pid=1, state="idle",
                    peer_url=address, files=files,
                )  # fmt: skip
                await store.workers.heartbeat(record)
            found = file_server.other_hosts(RolloutSettings(peer_url="http://10.0.0.2:8004"), store)
            assert (found.address, await found.of(NAME)) == (
                "http://10.0.0.2:8004",
                ["http://10.0.0.1:8004"],
            )
        finally:
            await store.close()


def test_the_file_server_runs_alone_and_stops_when_told_to(gateway: Host, tmp_path: Path) -> None:
    (port,) = own_ports("127.0.0.1", 1)
    url = f"http://127.0.0.1:{port}"
    command = [
        sys.executable,
        "-m",
        "rollout.file_server",
        "--peer-url",
        url,
        "--data",
        str(gateway.root),
    ]
    kept = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")}
    environment = kept | {"HEADRACE_DATA": str(gateway.root)}
    refused = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (refused.returncode, "there is no API key" in refused.stderr) == (2, True)
    process = subprocess.Popen(command, env=environment | {"HEADRACE_API_KEY": KEY})
    try:
        with httpx.Client(base_url=url, transport=httpx.HTTPTransport(retries=8)) as client:
            assert client.get("/healthz").status_code == 200
            answer = client.get(f"/v1/files/{NAME}", headers=authorization(PEER_KEY))
            assert answer.content == CONTENT
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
