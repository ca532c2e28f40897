"""`python -m bench.readers`: what the readers of the API cost a run.

A gateway serves 200 clients of `GET /v1/stream` that name the run, and up to 1,000 reads a second:
the list of runs, the run, the workers. Redis, the store's code and the gateway are the product's.
Workers and learner are simulated (`bench.fleet`). Gateway and clients have the lowest priority, as
if they had cores of their own: the figures show what they cost through Redis.

`python -m bench.readers --clients URL KEY` is the process of the clients. It works until SIGTERM,
then prints what it has done as JSON.
"""

import argparse
import asyncio
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from bench.fleet import RUN, durable_redis
from bench.installation import failures
from bench.runner import BenchFailed, BenchPart, BenchResults, Figures
from bench.store import FULL, QUICK, measure
from headrace.death_signal import die_with

WORKERS = 16
LISTENERS = 200
READS = 1000
"""Reads a second, at most."""
CONNECTIONS = 20
"""Connections that read, each one request at a time."""
READ = ("/v1/runs?limit=20", f"/v1/runs/{RUN}", "/v1/workers")
ROUNDS = 3
LOWEST = 19
"""The least priority of a process."""


class Clients:
    """The listeners and the readers of one gateway."""

    def __init__(self, url: str, key: str) -> None:
        self._address = urlsplit(url)
        self._key = key
        self.reads = self.messages = 0
        self.began = self._due = 0.0

    async def work(self) -> None:
        """Wait for the run, then listen and read until cancelled."""
        # The gateway and the run begin in other processes.
        while await self._status() is None:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        print("ready", flush=True)
        while await self._status() != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        self.began = self._due = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(LISTENERS):
                group.create_task(self._listen())
            for number in range(CONNECTIONS):
                group.create_task(self._read(number))

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self._address.hostname, self._address.port)

    def _request(self, path: str) -> bytes:
        head = f"Host: {self._address.netloc}\r\nAuthorization: Bearer {self._key}\r\n"
        return f"GET {path} HTTP/1.1\r\n{head}\r\n".encode()

    async def _status(self) -> int | None:
        """Return the status of a request for the run; None without a gateway."""
        try:
            reader, writer = await self._open()
        except ConnectionError:
            return None
        writer.write(self._request(f"/v1/runs/{RUN}"))
        line = await reader.readline()
        writer.close()
        return int(line.split()[1])

    async def _listen(self) -> None:
        reader, writer = await self._open()
        writer.write(self._request(f"/v1/stream?run={RUN}"))
        while line := await reader.readline():
            self.messages += line.startswith(b"event: ")
        raise BenchFailed("the gateway ended a stream")

    async def _read(self, number: int) -> None:
        reader, writer = await self._open()
        while True:
            self._due = max(self._due + 1 / READS, time.perf_counter() - 0.1)
            await asyncio.sleep(self._due - time.perf_counter())
            writer.write(self._request(READ[(self.reads + number) % len(READ)]))
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            if b" 200 " not in head.partition(b"\r\n")[0]:
                raise BenchFailed(f"a read failed: {head.decode(errors='replace')[:200]}")
            length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(length))
            self.reads += 1


async def serve_clients(url: str, key: str) -> None:
    """Run the clients until SIGTERM. Print reads and messages a second."""
    clients = Clients(url, key)
    task = asyncio.create_task(clients.work())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        seconds = time.perf_counter() - clients.began
        rates = {
            "reads/s": clients.reads / seconds,
            "messages/s": clients.messages / seconds,
        }
        print(json.dumps(rates), flush=True)


@contextmanager
def read_by_clients(redis_url: str, folder: Path) -> Iterator[dict[str, float]]:
    """Run a gateway and its clients. The yielded figures are filled in at the end."""
    key = f"hr-{secrets.token_hex(16)}"
    kept = {name: text for name, text in os.environ.items() if not name.startswith("HEADRACE_")}
    environment = kept | {
        "HEADRACE_REDIS_URL": redis_url,
        "HEADRACE_DATA": str(folder),
        "HEADRACE_API_KEY": key,
        "HEADRACE_REPORTS": "false",
        "HEADRACE_LOG_LEVEL": "error",
    }
    rates: dict[str, float] = {}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    gateway = _started(["services.gateway", "--port", str(port)], environment)
    try:
        url = f"http://127.0.0.1:{port}"
        clients = _started(["bench.readers", "--clients", url, key], environment)
        try:
            assert clients.stdout is not None
            if clients.stdout.readline() != b"ready\n":
                raise BenchFailed("the clients found no gateway; their errors are above")
            yield rates
            clients.terminate()
            output, _ = clients.communicate(timeout=30)
            if not output:
                raise BenchFailed("the clients broke off; their errors are above")
            rates |= json.loads(output)
        finally:
            clients.kill()
            clients.wait()
    finally:
        gateway.kill()
        gateway.wait()


def _started(module: list[str], environment: dict[str, str]) -> "subprocess.Popen[bytes]":
    def prepare() -> None:
        die_with(os.getppid())()
        os.nice(LOWEST)

    return subprocess.Popen(
        [sys.executable, "-m", *module],
        env=environment,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[1],
        preexec_fn=prepare,
    )


def measured(is_read: bool, load: str, warmup: float, seconds: float) -> Figures:
    """The figures of a run under one load, with or without clients."""
    with tempfile.TemporaryDirectory(prefix="headrace-") as name:
        folder = Path(name)
        (folder / "redis").mkdir()
        with durable_redis(folder / "redis") as url:
            if not is_read:
                return asyncio.run(measure(url, WORKERS, load, warmup, seconds))
            with read_by_clients(url, folder / "data") as rates:
                figures = asyncio.run(measure(url, WORKERS, load, warmup, seconds))
            return {**figures, **rates}


def run(warmup: float, seconds: float, rounds: int = ROUNDS) -> BenchResults:
    options = {"warmup": warmup, "seconds": seconds, "listeners": LISTENERS, "reads": READS}
    results = BenchResults("readers", options)
    with results.noting(), failures():
        for load in ("full speed", "steady"):
            sides = {
                name: partial(measured, is_read, load, warmup, seconds)
                for name, is_read in (("read", True), ("alone", False))
            }
            results.measure(BenchPart(load, sides, rounds=rounds, ratio=("read", "alone")))
    return results


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.readers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one second a load")
    parser.add_argument("--clients", nargs=2, metavar=("URL", "KEY"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.clients:
        asyncio.run(serve_clients(*asked.clients))
        return 0
    return run(*(QUICK if asked.quick else FULL)).report()


if __name__ == "__main__":
    sys.exit(main())
