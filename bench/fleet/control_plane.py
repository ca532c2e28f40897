"""`python -m bench.fleet.control_plane`: the cost of a group in Redis, from one worker to 1,024.

Redis is real and durable, as an installation starts it; so is the store's code. Workers and the
learner are simulated (`fleet`). The worker whose calls are timed has this process to itself, with
the learner. All others share one more, so that the timed calls wait for Redis and nothing else.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from statistics import quantiles
from typing import Any

import redis
from redis.asyncio import Redis

from bench.results import begun, keep, table
from bench.simulated.fleet import RUN, Learner, Meter, Worker, first_to_break, make_run
from services.launch.redis import Listening, find_server, servers_here, write_config
from services.runtime.process import die_with
from services.runtime.tasks import end

WORKERS = (1, 16, 256, 1024)
LOADS = ("full_speed", "steady")
TIMED_GROUPS, OTHER_GROUPS = 16.0, 48.0
"""Under the steady load, groups a second of the timed worker, and of all others."""
FULL, QUICK = (2.0, 10.0), (0.3, 1.0)
"""Seconds of warm-up, and seconds that are measured."""
TICKS = os.sysconf("SC_CLK_TCK")


@contextmanager
def durable_redis(folder: Path) -> Iterator[str]:
    """The URL of an empty Redis that fsyncs before it replies, for the length of the block.

    Raises LaunchError if this machine has no usable redis-server, redis.ConnectionError if it does
    not answer within 10 s.
    """
    at = Listening(folder, folder / "redis.sock")
    server = subprocess.Popen(
        [find_server(servers_here()), write_config(at)],
        stdout=subprocess.DEVNULL,
        preexec_fn=die_with(os.getpid()),
    )
    url = at.url("")
    patient = redis.retry.Retry(redis.backoff.ConstantBackoff(0.05), 200)
    try:
        with redis.Redis.from_url(url, retry=patient) as client:
            client.ping()
        yield url
    finally:
        server.kill()
        server.wait()


@contextmanager
def others(url: str, count: int, period: float) -> Iterator[int | None]:
    """`count` workers at work in a process of their own: its pid, None for no worker."""
    if count == 0:
        yield None
        return
    fleet = subprocess.Popen(
        [sys.executable, "-m", "bench.simulated.fleet", url, str(count), str(period)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
        preexec_fn=die_with(os.getpid()),
    )
    assert fleet.stdout is not None
    try:
        if fleet.stdout.readline() != b"connected\n":
            raise RuntimeError(f"{count} simulated workers ended; their errors are above")
        yield fleet.pid
    finally:
        fleet.kill()
        fleet.wait()
        fleet.stdout.close()


async def measure(
    url: str, workers: int, load: str, warmup: float, seconds: float
) -> dict[str, Any]:
    """One of LOADS on an empty Redis. Raises the errors of the calls, and RuntimeError if the other
    workers end or the audit is not clean."""
    steady = load == "steady"
    meter = Meter()
    async with AsyncExitStack() as stack:
        client = Redis.from_url(url)
        stack.push_async_callback(client.aclose)
        worker = Worker(0, url, meter)
        stack.push_async_callback(worker.store.close)
        learner = Learner(worker.store, await make_run(worker.store), meter)
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
            calls = {name: latency(taken) for name, taken in sorted(meter.seconds.items())}
        finally:
            await end(tasks)
        audit = await worker.store.ledger.audit(RUN)
        if not audit.clean:
            raise RuntimeError(f"the audit of {workers} workers: {audit.problems}")
    return {
        "groups_per_second": groups / took,
        "redis_cpu_us_per_group": 1e6 * redis_cpu / groups,
        "redis_busy": redis_cpu / took,
        "other_workers_busy": others_cpu / took,
        "calls": calls,
    }


async def _redis_cpu(client: Any) -> float:
    """CPU seconds that Redis has used, all its threads."""
    found = await client.info("cpu")
    return float(found["used_cpu_user"]) + float(found["used_cpu_sys"])


def _cpu(pid: int | None) -> float:
    """CPU seconds that a process has used; 0 for None."""
    if pid is None:
        return 0.0
    # Fields 14 and 15, counted behind the name, which may hold anything (proc(5)).
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def latency(taken: list[float]) -> dict[str, float]:
    """From the seconds of each call: the number of calls, and milliseconds."""
    cuts = quantiles(taken, n=100, method="inclusive") if len(taken) > 1 else taken * 99
    return {"calls": len(taken), "p50_ms": 1e3 * cuts[49], "p99_ms": 1e3 * cuts[98]}


def run(sizes: tuple[int, ...], warmup: float, seconds: float) -> dict[str, Any]:
    """Each load for each number of workers."""
    results = begun("control_plane") | {load: {} for load in LOADS}
    for load in LOADS:
        for workers in sizes:
            with (
                tempfile.TemporaryDirectory(prefix="headrace-") as folder,
                durable_redis(Path(folder)) as url,
            ):
                found = asyncio.run(measure(url, workers, load, warmup, seconds))
            results[load][str(workers)] = found
    cost = [found["redis_cpu_us_per_group"] for found in results["full_speed"].values()]
    results["cost_of_most_over_fewest"] = cost[-1] / cost[0]
    return results


def text(results: Mapping[str, Any]) -> str:
    """A table for each load."""
    tables = []
    for load in LOADS:
        found = results[load]
        rows = [[f"{load}: workers", *found]]
        for label, name, form in (
            ("Redis CPU, µs/group", "redis_cpu_us_per_group", "{:,.0f}"),
            ("groups/s", "groups_per_second", "{:,.0f}"),
            ("Redis, cores", "redis_busy", "{:.2f}"),
            ("other workers, cores", "other_workers_busy", "{:.2f}"),
        ):
            rows.append([label, *(form.format(one[name]) for one in found.values())])
        for name in dict.fromkeys(name for one in found.values() for name in one["calls"]):
            calls = (one["calls"].get(name) for one in found.values())
            cells = ("-" if c is None else f"{c['p50_ms']:.1f} / {c['p99_ms']:.1f}" for c in calls)
            rows.append([f"{name}, ms, p50 / p99", *cells])
        tables.append(table(rows))
    ratio = results["cost_of_most_over_fewest"]
    tables.append(f"Redis CPU per group at full speed, most workers / fewest: {ratio:.2f}")
    return "\n\n".join(tables)


def main() -> int:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description="The cost of a group in Redis.")
    parser.add_argument("--quick", action="store_true", help="one second a load")
    results = run(WORKERS, *(QUICK if parser.parse_args().quick else FULL))
    print(f"{text(results)}\nall figures: {keep(results)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
