"""Hosts without the data volume fetch large files from each other and from the gateway. Real HTTP
on loopback; hostile hosts are scripted."""

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import httpx
import msgspec
import pytest
import xxhash
from pydantic import SecretStr
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from bench.control_plane import durable_redis
from rollout import file_server
from rollout.aio import end
from rollout.file_server import Files, serve
from rollout.settings import RolloutSettings
from services.contracts.records import WorkerRecord
from services.contracts.weights import SMALLEST_PART, WeightFile
from services.http import Bandwidth
from services.runtime import probe
from services.runtime.api_key import authorization, key_for_peers
from services.runtime.process import die_with
from services.store import Store
from services.volume import DamagedFile, GatewayAway, Peers, Volume, download, weight_file
from services.volume.partial import parts_path
from tests.ports import own_ports

PARTS = 6
CONTENT = random.Random(0).randbytes(SMALLEST_PART) * (PARTS - 1) + bytes(1000)
NAME = "runs/r/weights/v000001-ab.safetensors"
KEY = "hr-test"
PEER_KEY = key_for_peers(KEY) or ""


class Host:
    """A host with a folder of its own, which serves files as a worker does."""

    def __init__(self, root: Path, key: str = PEER_KEY) -> None:
        self.root = root
        self.key = key
        self.asked: list[str] = []
        """Range headers of the requests that were answered with a file."""
        self.url = ""
        self._files = Files(root, Bandwidth(None))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def noted(message):
            if message["type"] == "http.response.start" and message["status"] < 400:
                self.asked.append(Headers(scope=scope).get("range", ""))
            await send(message)

        await self._files(scope, receive, noted)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["Host"]:
        listener = socket.create_server(("127.0.0.1", 0))
        self.url = "http://{}:{}".format(*listener.getsockname())
        serving = asyncio.create_task(serve(self, self.key, listener))
        try:
            yield self
        finally:
            await end([serving])
            listener.close()


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Host]:
    host = Host(tmp_path / "gateway", KEY)
    path = host.root / NAME
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    async with host.listening():
        yield host


@pytest.fixture
def file(gateway: Host) -> WeightFile:
    return weight_file(gateway.root / NAME, NAME)


def volume(root: Path, gateway: str, own: str = "", *hosts: str) -> Volume:
    async def listed() -> list[tuple[str, list[str]]]:
        return [(host, [NAME]) for host in (*hosts, own) if host]

    return Volume(root, gateway, KEY, Peers(own, listed, PEER_KEY))


def test_a_files_parts_are_described(file: WeightFile) -> None:
    assert file.bytes == len(CONTENT)
    assert file.xxh3 == xxhash.xxh3_64_hexdigest(CONTENT)
    assert [xxhash.xxh3_64_hexdigest(CONTENT[at : at + SMALLEST_PART])
            for at in range(0, len(CONTENT), SMALLEST_PART)] == file.parts  # fmt: skip


async def test_the_gateway_sends_each_byte_once_to_hosts_that_fetch_together(
    gateway: Host, file: WeightFile, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        hosts = [
            await stack.enter_async_context(Host(tmp_path / str(n)).listening()) for n in range(4)
        ]
        urls = [host.url for host in hosts]
        volumes = [volume(h.root, gateway.url, h.url, *(set(urls) - {h.url})) for h in hosts]
        paths = await asyncio.gather(*(one.fetch(file) for one in volumes))

        assert all(path.read_bytes() == CONTENT for path in paths)
        assert sorted(Counter(gateway.asked).values()) == [1] * PARTS
        assert sum(len(host.asked) for host in hosts) == 3 * PARTS
        # One that comes later needs the gateway for what it would pass on first, at most.
        late = volume(tmp_path / "late", gateway.url, "", *urls)
        gateway.asked.clear()
        assert (await late.fetch(file)).read_bytes() == CONTENT
        assert not gateway.asked
    left = [path.name for host in hosts for path in (host.root / NAME).parent.iterdir()]
    assert set(left) == {Path(NAME).name}


async def answer_wrong(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    first, last, length = await asked(reader)
    head = partial_content(first, last)
    writer.write(head + bytes(length))


async def answer_endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asked(reader)
    writer.write(b"HTTP/1.1 206 OK\r\ntransfer-encoding: chunked\r\n"
                 b"content-range: bytes 0-4194303/9999999999\r\n\r\n")  # fmt: skip
    while True:
        writer.write(b"10000\r\n" + bytes(1 << 16) + b"\r\n")
        await writer.drain()


async def answer_too_much(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    first, last, length = await asked(reader)
    writer.write(partial_content(first, last).replace(b"%d" % length, b"%d" % 10**12))
    while True:
        writer.write(bytes(1 << 16))
        await writer.drain()


async def answer_drop_by_drop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    first, last, _ = await asked(reader)
    writer.write(partial_content(first, last))
    while True:
        writer.write(b"\0")
        await writer.drain()
        await asyncio.sleep(0.02)


async def answer_header_drop_by_drop(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    await asked(reader)
    writer.write(b"HTTP/1.1 206 OK\r\n")
    while True:
        writer.write(b"x: y\r\n")
        await writer.drain()
        await asyncio.sleep(0.2)


async def answer_redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asked(reader)
    writer.write(b"HTTP/1.1 302 Found\r\nlocation: http://[::1]:1/\r\ncontent-length: 0\r\n\r\n")


async def answer_half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    first, last, length = await asked(reader)
    writer.write(partial_content(first, last) + CONTENT[first : first + length // 2])
    await writer.drain()
    writer.close()


async def answer_other_file(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asked(reader)
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")


async def answer_no_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asked(reader)
    writer.write(b"\x16\x03\x01" * 1000 + b"\r\n\r\n")
    writer.close()


async def asked(reader: asyncio.StreamReader) -> tuple[int, int, int]:
    """(first, last, length) of the range that a request asks for."""
    header = await reader.readuntil(b"\r\n\r\n")
    assert PEER_KEY.encode() in header
    assert KEY.encode() + b"\r" not in header
    _, _, said = header.partition(b"Range: bytes=")
    first, last = said.split(b"\r\n")[0].split(b"-")
    return int(first), int(last), int(last) + 1 - int(first)


def partial_content(first: int, last: int) -> bytes:
    return (
        b"HTTP/1.1 206 Partial Content\r\ncontent-length: %d\r\ncontent-range: bytes %d-%d/%d\r\n"
        b"\r\n" % (last + 1 - first, first, last, len(CONTENT))
    )


HOSTILE = [
    answer_wrong,
    answer_endless,
    answer_too_much,
    answer_drop_by_drop,
    answer_header_drop_by_drop,
    answer_redirect,
    answer_half,
    answer_other_file,
    answer_no_http,
]


@asynccontextmanager
async def scripted(
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """The address of a server that answers every request so."""

    async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await answer(reader, writer)

    server = await asyncio.start_server(answered, "127.0.0.1", 0)
    try:
        yield "http://{}:{}".format(*server.sockets[0].getsockname())
    finally:
        server.close()


@pytest.mark.parametrize("answer", HOSTILE, ids=lambda answer: answer.__name__)
async def test_a_hostile_host_costs_one_part_and_is_left_alone(
    gateway: Host,
    file: WeightFile,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> None:
    monkeypatch.setattr(download, "LEAST_SECONDS", 0.3)
    monkeypatch.setattr(download, "LEAST_RATE", 1e9)
    requests = 0

    async def counted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        requests += 1
        await answer(reader, writer)

    async with scripted(counted) as hostile:
        here = volume(tmp_path / "here", gateway.url, "", hostile)
        path = await here.fetch(file)
        assert path.read_bytes() == CONTENT
        # Two are under way when the first is noticed.
        assert 0 < requests <= 4
        assert len(gateway.asked) == PARTS
        path.unlink()
        await here.fetch(file)
        assert requests <= 4


async def test_a_host_that_is_gone_is_left_alone(
    gateway: Host, file: WeightFile, tmp_path: Path
) -> None:
    here = volume(tmp_path / "here", gateway.url, "", "http://127.0.0.1:1", "ftp://nonsense", "")
    assert (await here.fetch(file)).read_bytes() == CONTENT


async def test_hosts_that_have_a_file_give_it_while_the_gateway_is_away(
    gateway: Host, file: WeightFile, tmp_path: Path
) -> None:
    async with Host(gateway.root).listening() as other:
        here = volume(tmp_path / "here", "http://127.0.0.1:1", "http://own:1", other.url)
        assert (await here.fetch(file)).read_bytes() == CONTENT


async def test_wrong_bytes_of_the_gateway_are_refused_and_not_kept(
    gateway: Host, file: WeightFile, tmp_path: Path
) -> None:
    with (gateway.root / NAME).open("r+b") as damaged:
        damaged.seek(SMALLEST_PART + 5)
        damaged.write(b"!")
    with pytest.raises(DamagedFile, match=r"part 1 of .*, from byte 4194304, .* the manifest says"):
        await volume(tmp_path, gateway.url).fetch(file)
    assert not list((tmp_path / NAME).parent.glob(".*part*"))


async def test_a_download_of_which_the_gateway_sends_a_little_at_a_time_begins_once(
    file: WeightFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "pause", lambda failures: 0.0)
    sent = []

    async def breaks_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        header = await reader.readuntil(b"\r\n\r\n")
        _, ranged, said = header.partition(b"Range: bytes=")
        first = int(said.partition(b"-")[0]) if ranged else 0
        sent.append(first)
        status = partial_content(first, len(CONTENT) - 1)
        if not ranged:
            status = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(CONTENT)
        writer.write(status + CONTENT[first : first + (3 << 20)])
        await writer.drain()
        writer.close()

    whole = WeightFile(NAME, file.bytes, file.xxh3)
    async with scripted(breaks_off) as url:
        assert (await volume(tmp_path, url).fetch(whole)).read_bytes() == CONTENT
    assert sent == list(range(0, len(CONTENT), 3 << 20))


FETCH = """
import asyncio, sys
from pathlib import Path
import msgspec
from services.contracts.weights import WeightFile
from services.volume import Volume
file = msgspec.json.decode(sys.argv[3], type=WeightFile)
asyncio.run(Volume(Path(sys.argv[1]), sys.argv[2], "hr-test").fetch(file))
"""


async def test_a_host_goes_on_where_a_killed_worker_stopped_and_gives_away_what_it_has(
    gateway: Host, file: WeightFile, tmp_path: Path
) -> None:
    async def gives_three(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        header = await reader.readuntil(b"\r\n\r\n")
        first, last = header.partition(b"Range: bytes=")[2].split(b"\r\n")[0].split(b"-")
        if int(first) >= 3 * SMALLEST_PART:
            await asyncio.sleep(60)
        writer.write(partial_content(int(first), int(last)) + CONTENT[int(first) : int(last) + 1])

    root = tmp_path / "here"
    path = root / NAME
    async with scripted(gives_three) as url, Host(root).listening() as here:
        text = msgspec.json.encode(file).decode()
        worker = subprocess.Popen(  # noqa: ASYNC220 - returns after fork and exec
            [sys.executable, "-c", FETCH, root, url, text], preexec_fn=die_with(os.getpid())
        )
        async with asyncio.timeout(100):
            while not parts_path(path).exists() or parts_path(path).read_bytes().count(1) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        async with httpx.AsyncClient(headers=authorization(PEER_KEY)) as client:
            at = f"{here.url}/v1/files/{NAME}"
            two = {"Range": f"bytes={SMALLEST_PART}-{3 * SMALLEST_PART - 1}"}
            have = await client.get(at, headers=two)
            assert have.content == CONTENT[SMALLEST_PART : 3 * SMALLEST_PART]
            not_yet = await client.get(at, headers={"Range": f"bytes=0-{4 * SMALLEST_PART - 1}"})
            assert (not_yet.status_code, not_yet.headers["X-Headrace-Fetching"]) == (503, "1")
        # The lock holds across processes, and whoever waits for it may stop at any moment.
        waiting = asyncio.create_task(volume(root, gateway.url).fetch(file))
        await asyncio.sleep(0.1)
        began = time.monotonic()
        await end([waiting])
        assert time.monotonic() - began < 1
        assert not gateway.asked
        worker.kill()
        worker.wait()
    # As after a power cut: a part that is said to be there is not.
    with path.with_name(f".{path.name}.part").open("r+b") as unfinished:
        unfinished.write(bytes(10))
    assert (await volume(root, gateway.url).fetch(file)).read_bytes() == CONTENT
    first = [int(said.removeprefix("bytes=").partition("-")[0]) for said in gateway.asked]
    assert sorted(first) == [0, *(n * SMALLEST_PART for n in range(3, PARTS))]


async def test_a_download_from_a_silent_gateway_stops_at_once_when_it_is_told_to(
    file: WeightFile, tmp_path: Path
) -> None:
    begun = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begun.set()
        await asyncio.sleep(60)

    async with scripted(silent) as url:
        for one in (file, WeightFile(NAME, file.bytes, file.xxh3), NAME):
            begun.clear()
            fetching = asyncio.create_task(volume(tmp_path, url).fetch(one))
            await begun.wait()
            began = time.monotonic()
            await end([fetching])
            assert time.monotonic() - began < 1


async def test_a_gateway_that_is_away_is_named(
    file: WeightFile, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(download, "pause", lambda failures: 0.0)
    with pytest.raises(GatewayAway, match=r"the gateway http://127\.0\.0\.1:1 does not give"):
        await volume(tmp_path, "http://127.0.0.1:1").fetch(file)


async def test_files_are_given_to_those_with_the_hosts_key_alone(
    gateway: Host, tmp_path: Path
) -> None:
    (gateway.root / "api-key").write_text(KEY)
    async with Host(gateway.root).listening() as host, httpx.AsyncClient(base_url=host.url) as api:
        at = f"/v1/files/{NAME}"
        for headers in ({}, authorization(KEY), authorization("hr-wrong")):
            assert (await api.get(at, headers=headers)).status_code == 401
        api.headers.update(authorization(PEER_KEY))
        assert (await api.get(at)).content == CONTENT
        for path in ("api-key", "runs/r/weights/../../../api-key", "runs/r/weights/.hidden"):
            assert (await api.get(f"/v1/files/{path}")).status_code == 403
        assert (await api.get("/v1/files/runs/r/weights/none")).status_code == 404
        assert (await api.post(at)).status_code == 404
        assert await asyncio.to_thread(probe.ask, f"{host.url}/healthz") == (200, "")


async def test_of_the_workers_of_a_host_one_serves_and_another_takes_over(
    gateway: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_server, "TAKE_OVER_SECONDS", 0.05)
    (port,) = own_ports("127.0.0.1", 1)
    settings = RolloutSettings(
        peer_url=f"http://127.0.0.1:{port}", api_key=SecretStr(KEY), data=gateway.root
    )
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
    await asyncio.wait_for(file_server.keep_serving(elsewhere), 5)


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
            assert (found.own, await found.of(NAME)) == (
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
        assert process.wait(10) == 0
