"""The reward service for a benchmark: started, asked on plain sockets, ended.

Requests are encoded beforehand, so that the client costs the service little of the machine.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import httpx

Address = tuple[str, int]


@dataclass
class Rate:
    """Scorings of one way over one stretch of wall time."""

    items: int
    seconds: float
    right: int
    """As expected."""
    p50: float = 0.0
    """Median time of a request in seconds."""
    p99: float = 0.0

    @property
    def per_second(self) -> float:
        """Scorings a second."""
        return self.items / self.seconds

    def figures(self) -> dict[str, float]:
        """All of it, for the results."""
        return {**asdict(self), "per_second": self.per_second}


class Connection:
    """One connection of a client that does nothing but wait."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, request: bytes) -> bytes:
        """The body of the reply. Raises RuntimeError unless it is a 200."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(*self._address)
        reader, writer = self._streams
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
        body = await reader.readexactly(length)
        if b" 200 " not in head[:20]:
            raise RuntimeError(f"the service answers {head[:40]!r} {body[:300]!r}")
        return body


def encoded(items: Sequence[dict[str, Any]], size: int) -> list[bytes]:
    """Requests of `size` items each, as they go over the wire. Ids are the items' numbers."""
    made = []
    for start in range(0, len(items), size):
        part = [
            {"id": str(start + number), **item}
            for number, item in enumerate(items[start : start + size])
        ]
        body = json.dumps({"items": part}).encode()
        made.append(
            b"POST /v1/score HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%b" % (len(body), body)
        )
    return made


async def ask(
    address: Address,
    items: Sequence[dict[str, Any]],
    size: int,
    connections: int,
    right: bytes,
    answered: Callable[[int], None] = lambda requests: None,
) -> Rate:
    """All of `items`, `size` a request, `connections` requests at a time. `right`: what stands in
    the answer once for each item that was scored as expected; `answered` is told after each
    request how many there were."""
    left = iter(encoded(items, size))
    times: list[float] = []
    found = 0

    async def client() -> None:
        nonlocal found
        connection = Connection(*address)
        for request in left:
            began = time.perf_counter()
            body = await connection.post(request)
            times.append(time.perf_counter() - began)
            found += body.count(right)
            answered(len(times))

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(connections)))
    seconds = time.perf_counter() - began
    return Rate(len(items), seconds, found, median(times), sorted(times)[int(0.99 * len(times))])


@contextmanager
def service(*options: str, patience: float = 60.0) -> Iterator[Address]:
    """A reward service with these command line options, for the length of the block. Raises
    RuntimeError where it is not ready after `patience` seconds."""
    with (
        # A pipe that nobody reads would block it once it is full.
        tempfile.NamedTemporaryFile() as log,
        subprocess.Popen(
            [sys.executable, "-m", "reward", "--port", "0", *options],
            env={**os.environ, "HEADRACE_LOG_FORMAT": "json"},
            stderr=log,
        ) as process,
    ):
        try:
            yield _address(process, Path(log.name), patience)
        finally:
            process.terminate()


def _address(process: subprocess.Popen[bytes], log: Path, patience: float) -> Address:
    """Where it listens, once it is ready. Raises RuntimeError."""
    deadline = time.monotonic() + patience
    while process.poll() is None and time.monotonic() < deadline:
        ready = [line for line in log.read_text().splitlines() if "reward service ready" in line]
        if ready:
            url = httpx.URL(json.loads(ready[0])["url"])
            return url.host, url.port or 80
        time.sleep(0.1)
    raise RuntimeError(f"the reward service did not start: {log.read_text()[-2000:]}")
