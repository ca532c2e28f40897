"""Hosts without the data volume fetch large files from each other and from the gateway. Real HTTP
on loopback."""

import asyncio
import os
import subprocess
import sys
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import msgspec
import pytest
import xxhash

from headrace.death_signal import die_with
from services.contracts.weights import SMALLEST_PART, WeightFile
from services.runtime.api_key import authorization
from services.runtime.tasks import end
from services.volume import DamagedFile, GatewayAway, download
from services.volume.partial import parts_path
from tests.integration.rollout.files.hosts import (
    CONTENT,
    NAME,
    PARTS,
    PEER_KEY,
    Host,
    partial_content,
    scripted,
    volume,
)


def test_a_files_parts_are_described(file: WeightFile) -> None:
    assert file.bytes == len(CONTENT)
    assert file.xxh3 == xxhash.xxh3_64_hexdigest(CONTENT)
    assert [xxhash.xxh3_64_hexdigest(CONTENT[at : at + SMALLEST_PART])
            for at in range(0, len(CONTENT), SMALLEST_PART)] == file.parts  # fmt: skip


async def test_the_gateway_sends_each_byte_once_to_hosts_that_fetch_together(
    gateway: Host, file: WeightFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Even on a busy machine no host counts as slow.
    monkeypatch.setattr(download, "LEAST_SECONDS", 100.0)
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
        # A late host needs the gateway only for the parts that it passes on first.
        late = volume(tmp_path / "late", gateway.url, "", *urls)
        gateway.asked.clear()
        assert (await late.fetch(file)).read_bytes() == CONTENT
        assert not gateway.asked
    left = [path.name for host in hosts for path in (host.root / NAME).parent.iterdir()]
    assert set(left) == {Path(NAME).name}


async def test_a_dead_host_is_avoided(gateway: Host, file: WeightFile, tmp_path: Path) -> None:
    here = volume(tmp_path / "here", gateway.url, "", "http://127.0.0.1:1", "ftp://nonsense", "")
    assert (await here.fetch(file)).read_bytes() == CONTENT


async def test_hosts_that_have_a_file_give_it_while_the_gateway_is_away(
    gateway: Host, file: WeightFile, tmp_path: Path
) -> None:
    async with Host(gateway.root).listening() as other:
        here = volume(tmp_path / "here", "http://127.0.0.1:1", "http://own:1", other.url)
        assert (await here.fetch(file)).read_bytes() == CONTENT


async def test_wrong_bytes_from_the_gateway_are_refused_and_not_kept(
    gateway: Host, file: WeightFile, tmp_path: Path
) -> None:
    with (gateway.root / NAME).open("r+b") as damaged:
        damaged.seek(SMALLEST_PART + 5)
        damaged.write(b"!")
    with pytest.raises(DamagedFile, match=r"part 1 of .*, from byte 4194304, .* the manifest says"):
        await volume(tmp_path, gateway.url).fetch(file)
    assert not list((tmp_path / NAME).parent.glob(".*part*"))


async def test_a_slow_download_from_the_gateway_is_not_restarted(
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


async def test_a_host_resumes_a_killed_workers_download_and_serves_its_parts(
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
        # The lock holds across processes, and each waiting process may stop at any moment.
        waiting = asyncio.create_task(volume(root, gateway.url).fetch(file))
        await asyncio.sleep(0.1)
        async with asyncio.timeout(30):
            await end([waiting])
        assert not gateway.asked
        worker.kill()
        worker.wait()
    # After a power cut, a part that is marked as present is missing.
    with path.with_name(f".{path.name}.part").open("r+b") as unfinished:
        unfinished.write(bytes(10))
    assert (await volume(root, gateway.url).fetch(file)).read_bytes() == CONTENT
    first = [int(said.removeprefix("bytes=").partition("-")[0]) for said in gateway.asked]
    assert sorted(first) == [0, *(n * SMALLEST_PART for n in range(3, PARTS))]


async def test_a_download_from_a_silent_gateway_can_be_cancelled_at_once(
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
            async with asyncio.timeout(30):
                await end([fetching])


async def test_a_gateway_that_is_away_is_named(
    file: WeightFile, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(download, "pause", lambda failures: 0.0)
    with pytest.raises(GatewayAway, match=r"the gateway http://127\.0\.0\.1:1 does not give"):
        await volume(tmp_path, "http://127.0.0.1:1").fetch(file)
