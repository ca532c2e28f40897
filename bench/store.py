"""`python -m bench.store`: the cost of a group in Redis, from one worker to 1,024.

Redis is real and durable, as an installation starts it. The store's code is the product's. Workers
and the learner are simulated (`fleet`). The timed worker and the learner share this process. All
other workers have one process together, so that the timed calls wait only for Redis.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import Any

from redis.asyncio import Redis

from bench.fleet import (
    RUN,
    Meter,
    StoreLearner,
    StoreWorker,
    durable_redis,
    first_to_break,
    make_run,
)
from bench.installation import failures
from bench.runner import BenchFailed, BenchPart, BenchResults, Figures
from headrace.death_signal import die_with
from services.runtime.tasks import end

WORKERS = (1, 16, 256, 1024)
LOADS = ("full speed", "steady")
TIMED_GROUPS, OTHER_GROUPS = 16.0, 48.0
"""Groups a second under the steady load: of the timed worker, and of all others."""
FULL, QUICK = (2.0, 10.0), (0.3, 1.0)
"""Seconds of warm-up, and seconds that are measured."""
TICKS = os.sysconf("SC_CLK_TCK")


@contextmanager
def others(url: str, count: int, period: float) -> Iterator[int | None]:
    """Run `count` workers in one process. Yield its pid, or None for no worker."""
    if count == 0:
        yield None
        return
    fleet = subprocess.Popen(
        [sys.executable, "-m", "bench.fleet", url, str(count), str(period)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[1],
        preexec_fn=die_with(os.getpid()),
    )
    assert fleet.stdout is not None
    try:
        if fleet.stdout.readline() != b"connected\n":
            raise BenchFailed(f"{count} simulated workers ended; their errors are above")
        yield fleet.pid
    finally:
        fleet.kill()
        fleet.wait()
        fleet.stdout.close()


def measured(workers: int, load: str, warmup: float, seconds: float) -> Figures:
    """The figures of one load, in an empty Redis of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="headrace-") as folder,
        durable_redis(Path(folder)) as url,
    ):
        return asyncio.run(measure(url, workers, load, warmup, seconds))


async def measure(url: str, workers: int, load: str, warmup: float, seconds: float) -> Figures:
    """One of LOADS on an empty Redis. Raise BenchFailed if the other workers end or the audit is
    not clean, and any error of a call."""
    steady = load == "steady"
    meter = Meter()
    async with AsyncExitStack() as stack:
        client = Redis.from_url(url)
        stack.push_async_callback(client.aclose)
        worker = StoreWorker(0, url, meter)
        stack.push_async_callback(worker.store.close)
        learner = StoreLearner(worker.store, await make_run(worker.store), meter)
        loops = [learner.work(), *worker.work(1 / TIMED_GROUPS if steady else 0)]
        tasks = [asyncio.create_task(loop) for loop in loops]
        try:
            waiting = others(url, workers - 1, (workers - 1) / OTHER_GROUPS if steady else 0)
            pid = await asyncio.to_thread(waiting.__enter__)
            stack.callback(waiting.__exit__, None, None, None)
            await first_to_break(tasks, warmup)
            meter.seconds.clear()
            read, began = learner.read, time.perf_counter()
            before = await _redis_cpu(client), _cpu(pid)
            await first_to_break(tasks, seconds)
            took, groups = time.perf_counter() - began, learner.read - read
            redis_cpu, others_cpu = await _redis_cpu(client) - before[0], _cpu(pid) - before[1]
            calls = [latency(name, taken) for name, taken in sorted(meter.seconds.items())]
        finally:
            await end(tasks)
        audit = await worker.store.ledger.audit(RUN)
        if not audit.clean:
            raise BenchFailed(f"the audit of {workers} workers: {audit.problems}")
    figures = {
        "groups/s": groups / took,
        "Redis CPU, µs/group": 1e6 * redis_cpu / groups,
        "Redis, cores": redis_cpu / took,
        "other workers, cores": others_cpu / took,
    }
    for call in calls:
        figures |= call
    return figures


async def _redis_cpu(client: Any) -> float:
    """CPU seconds of all threads of Redis."""
    usage = await client.info("cpu")
    return float(usage["used_cpu_user"]) + float(usage["used_cpu_sys"])


def _cpu(pid: int | None) -> float:
    """CPU seconds of a process. 0 for None."""
    if pid is None:
        return 0.0
    # Fields 14 and 15, counted after the name, which may contain spaces (proc(5)).
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def latency(name: str, taken: Sequence[float]) -> dict[str, float]:
    """The percentiles of a call in milliseconds, from the seconds of each call."""
    cuts = quantiles(taken, n=100, method="inclusive") if len(taken) > 1 else list(taken) * 99
    return {f"{name}, p50 ms": 1e3 * cuts[49], f"{name}, p99 ms": 1e3 * cuts[98]}


def run(sizes: Sequence[int], warmup: float, seconds: float) -> BenchResults:
    results = BenchResults("store", {"warmup": warmup, "seconds": seconds})
    with results.noting(), failures():
        for load in LOADS:
            sides = {
                f"{workers:,}": partial(measured, workers, load, warmup, seconds)
                for workers in sizes
            }
            ratio = (f"{sizes[-1]:,}", f"{sizes[0]:,}")
            results.measure(BenchPart(f"{load}, workers", sides, ratio=ratio))
    return results


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.store", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one second a load")
    return run(WORKERS, *(QUICK if parser.parse_args().quick else FULL)).report()


if __name__ == "__main__":
    sys.exit(main())
