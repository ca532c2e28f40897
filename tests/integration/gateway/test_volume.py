"""The data volume from a host without it: fetched from the gateway once, again where damaged."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest
import xxhash

from headrace.death_signal import die_with
from services.contracts.groups.payload import Owner, payload_name
from services.contracts.weights import WeightFile
from services.payloads import PlaceAway
from services.payloads.places import Files
from services.store import Store
from services.store.work.tasks import Lease
from services.volume import DamagedFile, Volume
from tests.integration.gateway.servers import (
    UPLOAD_LIMIT,
    GatewayProcess,
    RedisServer,
    upload,
)
from tests.integration.store.scene import Scene

NAME = "runs/far/weights/v000001-ab.safetensors"
CONTENT = bytes(range(256)) * 40
FILE = WeightFile(NAME, len(CONTENT), xxhash.xxh3_64_hexdigest(CONTENT))


@pytest.fixture
def original(gateway: GatewayProcess) -> Path:
    path = gateway.data / NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(CONTENT)
    return path


def test_a_file_that_is_gone_from_the_volume_is_named(
    api: httpx.Client, gateway: GatewayProcess, submit: Callable[..., httpx.Response]
) -> None:
    """It was an unexpected error of the gateway (500)."""
    added = upload(api, "vanished", b'{"question": "1+1", "answer": "2"}').json()
    (file,) = [segment["file"] for segment in added["segments"]]
    run = submit().json()["id"]
    metrics, ledger = (gateway.data / "runs" / run / n for n in ("metrics.jsonl", "ledger.jsonl"))
    (gateway.data / file).unlink()
    metrics.mkdir(parents=True)
    ledger.mkdir()

    shown = api.get("/v1/datasets/vanished/preview")
    refused = submit({"data": {"dataset": "vanished"}})
    measured = api.get(f"/v1/runs/{run}/metrics")
    audited = api.get(f"/v1/runs/{run}/audit")
    metrics.rmdir()
    ledger.rmdir()

    assert (shown.status_code, measured.status_code, audited.status_code) == (409, 409, 200)
    assert shown.json()["detail"].startswith(f"{file} on the data volume is gone, or no file")
    assert f"runs/{run}/metrics.jsonl" in measured.json()["detail"]
    assert (refused.status_code, refused.json()["detail"]) == (409, shown.json()["detail"])
    assert api.delete("/v1/datasets/vanished").status_code == 204


async def test_a_file_is_fetched_once(
    gateway: GatewayProcess, original: Path, tmp_path: Path
) -> None:
    volume = Volume(tmp_path, gateway.url, gateway.key)

    path = await volume.fetch(FILE)
    original.unlink()

    assert path.read_bytes() == CONTENT
    assert await volume.fetch(FILE) == path


async def test_a_damaged_copy_is_fetched_again(
    gateway: GatewayProcess, original: Path, tmp_path: Path
) -> None:
    volume = Volume(tmp_path, gateway.url, gateway.key)
    path = await volume.fetch(NAME)
    path.write_bytes(CONTENT[:-1] + b"?")

    await volume.fetch(FILE)

    assert path.read_bytes() == CONTENT


async def test_what_is_damaged_at_its_source_too_is_refused(
    gateway: GatewayProcess, original: Path, tmp_path: Path
) -> None:
    volume = Volume(tmp_path, gateway.url, gateway.key)
    await volume.fetch(NAME)
    for copy in (original, tmp_path / NAME):
        copy.write_bytes(CONTENT[:-1] + b"?")

    with pytest.raises(DamagedFile, match="its manifest says"):
        await volume.fetch(FILE)


async def test_a_damaged_copy_without_a_gateway_is_refused_as_damaged(tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.parent.mkdir(parents=True)
    path.write_bytes(b"half")

    with pytest.raises(DamagedFile, match="has 4 bytes, its manifest says 10240"):
        await Volume(tmp_path).fetch(FILE)


class Source:
    """A gateway with one file, which answers on command."""

    def __init__(self) -> None:
        self.requests: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await self.requests.put(writer)

    async def answer(self) -> None:
        """Answer one request."""
        writer = await self.requests.get()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(CONTENT) + CONTENT)
        await writer.drain()


@pytest.fixture
async def source() -> AsyncIterator[Source]:
    made = Source()
    listening = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = "http://{}:{}".format(*listening.sockets[0].getsockname())
    yield made
    listening.close()


async def test_workers_of_one_host_download_a_file_once(source: Source, tmp_path: Path) -> None:
    volumes = [Volume(tmp_path, source.url) for _ in range(4)]
    fetches = [asyncio.create_task(volume.fetch(FILE)) for volume in volumes]

    await source.answer()

    assert set(await asyncio.gather(*fetches)) == {tmp_path / NAME}
    assert source.requests.empty()
    assert [path.name for path in (tmp_path / NAME).parent.iterdir()] == [Path(NAME).name]


async def test_a_worker_downloads_what_a_killed_one_has_begun(
    source: Source, tmp_path: Path
) -> None:
    code = (
        "import asyncio, sys; from pathlib import Path; from services.volume import Volume\n"
        "asyncio.run(Volume(Path(sys.argv[1]), sys.argv[2]).fetch(sys.argv[3]))"
    )
    other = subprocess.Popen(  # noqa: ASYNC220 - returns after fork and exec
        [sys.executable, "-c", code, tmp_path, source.url, NAME],
        preexec_fn=die_with(os.getpid()),
    )
    await source.requests.get()
    fetch = asyncio.create_task(Volume(tmp_path, source.url).fetch(FILE))
    await asyncio.sleep(0)
    assert source.requests.empty()

    other.kill()
    other.wait()
    await source.answer()

    assert (await fetch).read_bytes() == CONTENT


# --- payloads of groups ---------------------------------------------------------------------------


@pytest.fixture
async def lease(redis_server: RedisServer, gateway: GatewayProcess) -> AsyncIterator[Lease]:
    """A lease of a run that the gateway knows."""
    store = Store.from_url(redis_server.url)
    scene = Scene(store, None, "far")
    await scene.start(eta=9)
    (lease,) = await scene.leased(1)
    yield lease
    await store.runs.set_state("far", "cancelled", "")
    await store.runs.delete("far")
    await store.datasets.delete("d")
    await store.close()


async def test_a_worker_without_the_volume_stores_and_reads_payloads_through_the_gateway(
    gateway: GatewayProcess, lease: Lease, tmp_path: Path
) -> None:
    far, content = Files(Volume(tmp_path, gateway.url, gateway.key)), CONTENT * 10
    name = payload_name(Owner("far", lease.task, lease.attempt), "0" * 16)
    await far.write(name, content)
    await far.write(name, content)
    assert (gateway.data / name).read_bytes() == content
    assert await far.read(name) == content
    assert list(tmp_path.iterdir()) == []

    late = payload_name(Owner("far", lease.task, "0" * 16), "0" * 16)
    with pytest.raises(PlaceAway, match="attempt 0000000000000000 of task 0 is over"):
        await far.write(late, content)
    with pytest.raises(PlaceAway, match="raise the gateway's HEADRACE_UPLOAD_LIMIT"):
        await far.write(name, bytes(UPLOAD_LIMIT + 1))
    with pytest.raises(FileNotFoundError, match="there is no file"):
        await far.read(late)
    assert [path.name for path in (gateway.data / name).parent.iterdir()] == [Path(name).name]


def test_only_payloads_of_a_known_length_are_taken(api: httpx.Client) -> None:
    for path in ("api-key", "runs/far/payloads/..%2f..%2fapi-key", "datasets/d/x", "runs/far/x"):
        assert api.put(f"/v1/files/{path}", content=b"x").status_code == 403
    path = payload_name(Owner("nobody", 0, "0" * 16), "0" * 16)
    assert api.put(f"/v1/files/{path}", content=b"x").status_code == 404
    assert api.put(f"/v1/files/{path}", content=iter([b"x"])).status_code == 411
    assert api.put(f"/v1/files/{path}", headers={"authorization": "x"}).status_code == 401
