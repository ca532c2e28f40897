"""How fast lists and the page are with 10,000 runs (`make bench-page`).

Gateway, Redis and page are the product's. The runs have ended; 20 of them have 24 metrics of 2,000
steps. Chromium measures the page (tests/browser/measure.py), since users do not install Playwright.
"""

import asyncio
import json
import math
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

import httpx
import redis

from bench.fleet import durable_redis
from bench.installation import failures
from bench.runner import BenchPart, BenchResults, Figures
from recipes import find_recipe, merged
from services.contracts.config import parse_config
from services.contracts.records import RunRecord, RunState, RunSummary
from services.store import Store
from services.store.keys import RUNS, run_key

COUNT = 10_000
DRAWN = 20
METRICS = 24
STEPS = 2_000
ROUNDS = 9
Views = Callable[[httpx.Client, list[str]], Figures]
"""Measures the page of a gateway with these runs."""
LISTS = {
    "list": "",
    "search": "&q=run-7777",
    "filter": "&state=failed",
    "filter that nothing passes": "&recipe=dapo",
}


def ended_run(id: str, name: str, created: float) -> RunRecord:
    """A run as it is submitted; `end` ends it."""
    base = {"model": {"path": "/models/policy"}, "data": {"dataset": "sums"}}
    config = parse_config(merged(find_recipe("grpo").config, base)).model_dump(mode="json")
    return RunRecord(
        id=id,
        name=name,
        pool="old",
        kind="rl",
        recipe="grpo",
        state=RunState.QUEUED,
        config=config,
        created=created,
        max_steps=STEPS,
    )


async def _end(url: str, record: RunRecord) -> None:
    store = Store.from_url(url)
    try:
        await store.runs.submit(record)
        await store.runs.finish(record.id, record.pool, "failed", "the disk was full")
    finally:
        await store.close()


def write_runs(url: str, count: int = COUNT, newest: float | None = None) -> list[str]:
    """Write ended runs into the Redis at `url`, a second apart, and return their ids, newest first.
    `newest`: when the newest was submitted. It goes through the store. The others are copies of
    its summary."""
    newest = time.time() - 60 if newest is None else newest
    ids = [f"{number:08x}" for number in range(count)]
    asyncio.run(_end(url, ended_run(ids[0], "run-0", newest)))
    with redis.Redis.from_url(url) as server:
        names = list(RunSummary.model_fields)
        values = zip(names, server.hmget(run_key(ids[0], "run"), names), strict=True)
        fields = {name: value for name, value in values if value is not None}
        piece = server.pipeline(transaction=False)
        for number, id in enumerate(ids[1:], 1):
            created = newest - number
            identity = {"id": id, "name": f"run-{number}", "created": created}
            piece.hset(run_key(id, "run"), mapping={**fields, **identity})
            piece.zadd(RUNS, {id: created})
            if number % 1000 == 0:
                piece.execute()
        piece.execute()
    return ids


def write_metrics(data: Path, run: str) -> None:
    """Write METRICS metrics of STEPS steps, as a learner does."""
    folder = data / "runs" / run
    folder.mkdir(parents=True)
    with (folder / "metrics.jsonl").open("w") as file:
        for step in range(1, STEPS + 1):
            values = {f"train/m{n}": math.sin(step / 50 + n) + step / STEPS for n in range(METRICS)}
            file.write(json.dumps({"step": step, "time": float(step), **values}) + "\n")


@contextmanager
def gateway_with(url: str, data: Path) -> Iterator[httpx.Client]:
    """Run a gateway over the Redis at `url`. Yield a client of it."""
    key = f"hr-{secrets.token_hex(16)}"
    kept = {name: text for name, text in os.environ.items() if not name.startswith("HEADRACE_")}
    environment = kept | {
        "HEADRACE_REDIS_URL": url,
        "HEADRACE_DATA": str(data),
        "HEADRACE_API_KEY": key,
        "HEADRACE_REPORTS": "false",
        "HEADRACE_LOG_LEVEL": "error",
    }
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "services.gateway", "--port", str(port)]
    gateway = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    headers = {"Authorization": f"Bearer {key}"}
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60)
    try:
        with client:
            for _ in range(600):
                try:
                    client.get("/v1/runs?limit=1").raise_for_status()
                    break
                except httpx.HTTPError:
                    time.sleep(0.1)
            yield client
    finally:
        gateway.kill()
        gateway.wait()


def lists(client: httpx.Client) -> Figures:
    """Milliseconds of each kind of list."""
    figures = {}
    for name, query in LISTS.items():
        seconds = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            client.get(f"/v1/runs?limit=50{query}").raise_for_status()
            seconds.append(time.perf_counter() - began)
        figures[f"{name}, ms"] = 1000 * median(seconds)
    return figures


def run(count: int = COUNT, views: Views | None = None) -> BenchResults:
    """Measure the gateway and, with `views`, the page in a browser."""
    results = BenchResults("page", {"runs": count, "steps": STEPS})
    with results.noting(), failures(), tempfile.TemporaryDirectory(prefix="headrace-") as name:
        folder = Path(name)
        (folder / "redis").mkdir()
        with durable_redis(folder / "redis") as url:
            ids = write_runs(url, count)
            for id in ids[:DRAWN]:
                write_metrics(folder / "data", id)
            with gateway_with(url, folder / "data") as client:
                sides: dict[str, Callable[[], Figures]] = {"gateway": partial(lists, client)}
                if views:
                    sides["page"] = partial(views, client, ids)
                results.measure(BenchPart(f"{count:,} runs", sides))
    return results
