"""`python -m bench.reward`: the reward service against its own libraries, bare.

`numbers` and `expressions`: short math answers, verified by the library math-verify in a process
pool (parsing both sides each time, without its timeouts, which rest on a signal that C code
ignores), and by the service through HTTP with as many workers, one item and 64 a request; then once
more while an item that never ends is always being tried. The bare pool would hang. `code`: programs
in the sandbox against bare subprocesses. `--reward-model FOLDER` adds `model`: conversations with
that model, against the same model bare in batches of similar length. Both ends share the cores.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from bench.results import begun, table
from bench.reward.bare import bare_code, bare_math, bare_model, rate
from bench.reward.items import POISON, PROGRAM, TESTS, Item, conversations, math_items

PARTS = ("math", "code")
CONNECTIONS = {1: 64, 64: 8}
"""Requests in flight, by items a request: enough to keep the workers busy."""
KEY = "bench"
CORRECT, SCORED = b'"status":"correct"', b'"status":"scored"'


def encoded(items: Sequence[Item], size: int) -> list[bytes]:
    """Requests of `size` items each, encoded beforehand so that the client costs little."""
    made = []
    for start in range(0, len(items), size):
        part = [
            {"id": str(start + number), **item}
            for number, item in enumerate(items[start : start + size])
        ]
        body = json.dumps({"items": part}).encode()
        made.append(
            b"POST /v1/score HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
            b"authorization: Bearer %b\r\ncontent-length: %d\r\n\r\n%b"
            % (KEY.encode(), len(body), body)
        )
    return made


async def post(streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], request: bytes) -> bytes:
    """The body of the reply. Raises RuntimeError unless it is a 200."""
    reader, writer = streams
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
    body = await reader.readexactly(length)
    if b" 200 " not in head[:20]:
        raise RuntimeError(f"the service answers {head[:40]!r} {body[:300]!r}")
    return body


async def ask(
    url: httpx.URL, items: Sequence[Item], size: int, right: bytes, poisoned: bool = False
) -> dict[str, float]:
    """The service, `size` items a request. `right`: the bytes that a reply has once for each item
    that was scored as expected. `poisoned`: an item that never ends is always being tried."""
    left = iter(encoded(items, size))
    times: list[float] = []
    found = 0

    async def client() -> None:
        nonlocal found
        streams = await asyncio.open_connection(url.host, url.port)
        for request in left:
            began = time.perf_counter()
            body = await post(streams, request)
            found += body.count(right)
            times.append(time.perf_counter() - began)
        streams[1].close()

    async def poison() -> None:
        streams = await asyncio.open_connection(url.host, url.port)
        while b'"status":"timeout"' in await post(streams, encoded([POISON], 1)[0]):
            continue
        raise RuntimeError("an item that never ends was not stopped")

    always = asyncio.create_task(poison()) if poisoned else None
    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(CONNECTIONS[size])))
    figures = rate(len(items), time.perf_counter() - began, found, times)
    if always is not None:
        assert not always.done() or always.result()
        always.cancel()
    return figures


@contextmanager
def service(*options: str, patience: float = 60.0) -> Iterator[httpx.URL]:
    """A reward service with these options, for the length of the block. Raises RuntimeError if it
    is not ready after `patience` seconds."""
    with (
        # A pipe that nobody reads would block it once it is full.
        tempfile.NamedTemporaryFile() as log,
        subprocess.Popen(
            [sys.executable, "-m", "reward", "--port", "0", *options],
            env={**os.environ, "HEADRACE_LOG_FORMAT": "json", "HEADRACE_REWARD_KEY": KEY},
            stderr=log,
        ) as process,
    ):
        try:
            deadline = time.monotonic() + patience
            ready: list[str] = []
            while not ready:
                if process.poll() is not None or time.monotonic() > deadline:
                    text = Path(log.name).read_text()[-2000:]
                    raise RuntimeError(f"the reward service did not start: {text}")
                time.sleep(0.1)
                lines = Path(log.name).read_text().splitlines()
                ready = [line for line in lines if "reward service ready" in line]
            yield httpx.URL(json.loads(ready[0])["url"])
        finally:
            process.terminate()


def measure(
    parts: Sequence[str], count: int, workers: int, model: Path | None = None
) -> dict[str, Any]:
    """The parts asked for, each with a service of its own. Of programs and conversations, which
    take longer, a 32nd and an eighth of `count`."""
    results: dict[str, Any] = begun("reward") | {"workers": workers}
    options = ("--workers", str(workers))
    if "math" in parts:
        with service(*options) as url:
            for kind in ("numbers", "expressions"):
                items = math_items(kind, count)
                asyncio.run(ask(url, items[: count // 4], 64, CORRECT))
                results[kind] = {"bare": bare_math(items, workers)}
                for size in CONNECTIONS:
                    for name, poisoned in (("", False), (", poisoned", True)):
                        found = asyncio.run(ask(url, items, size, CORRECT, poisoned))
                        results[kind][f"{size} a request{name}"] = found
    if "code" in parts:
        wrong = PROGRAM.replace("<", ">=")
        items = [
            {"verifier": "code", "completion": wrong if number % 2 else PROGRAM, "answer": TESTS}
            for number in range(count // 32)
        ]
        with service(*options) as url:
            asyncio.run(ask(url, items[: count // 128], 64, CORRECT))
            results["code"] = {"bare": bare_code(items, workers)}
            results["code"]["64 a request"] = asyncio.run(ask(url, items, 64, CORRECT))
    if model is not None:
        items = conversations(count // 8)
        with service(*options, f"--reward-models=bench={model}") as url:
            asyncio.run(ask(url, items[: count // 32], 64, SCORED))
            results["model"] = {"bare": bare_model(model, items)}
            results["model"]["64 a request"] = asyncio.run(ask(url, items, 64, SCORED))
    return results


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.reward", description=__doc__)
    parser.add_argument("--only", choices=PARTS, action="append", help="repeatable; default: all")
    parser.add_argument("--items", type=int, default=12_800, help="verifications of each way")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--reward-model", type=Path, help="its folder; measures conversations, too")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    given = parser.parse_args()
    results = measure(given.only or PARTS, given.items, given.workers, given.reward_model)
    if given.json:
        print(json.dumps(results, indent=2))
        return 0
    rows = [["", "a second", "of bare", "p50, ms", "p99, ms", "right"]]
    for kind in ("numbers", "expressions", "code", "model"):
        for name, one in results.get(kind, {}).items():
            share = one["per_second"] / results[kind]["bare"]["per_second"]
            cells = (f"{one['per_second']:,.0f}", f"{share:.2f}", f"{1e3 * one['p50']:.1f}")
            right = f"{one['right'] / one['items']:.1%}"
            rows.append([f"{kind}, {name}", *cells, f"{1e3 * one['p99']:.1f}", right])
    print(table(rows))
    return 0
