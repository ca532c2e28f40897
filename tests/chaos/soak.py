"""`make soak`: one long run, a random kill every 20 s, and whether anything grows meanwhile.

HEADRACE_SOAK_MINUTES (30), HEADRACE_CHAOS_SEED, HEADRACE_SOAK_RESULT (the file, JSON). Exit code 0:
the audit is clean and memory flat. What each process has resident is sampled by its part, the
largest process of each counts; of Redis, what it uses beyond the run's ledger and events, which are
a record of what has happened and grow by design.
"""

import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import redis

from bench.machine import describe
from services.cli.client import Gateway
from services.launch import Stack
from services.process import PART, marked
from services.store.keys import run_key
from tests.chaos.killing import ETA, FINAL, GROUPS, SEED, Chaos, options
from tests.chaos.victims import VICTIMS, kill

MINUTES = float(os.environ.get("HEADRACE_SOAK_MINUTES", "30"))
RESULT = Path(os.environ.get("HEADRACE_SOAK_RESULT", "soak.json"))
ROLLOUTS = 3
EVERY = 20.0
SAMPLED = 5.0
GROWTH, SLACK = 1.2, 16 << 20
"""Flat: the last quarter's median is at most this factor, and this many bytes, above that of the
second quarter (the first warms up)."""


def resident(stack: Stack) -> dict[str, int]:
    """Bytes of the largest process of each part; what a part's first process has started counts
    as a part of its own."""
    largest: dict[str, int] = defaultdict(int)
    for pid in marked(stack.marker):
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            continue
        names = [item.decode() for item in environment if item.startswith(f"{PART}=".encode())]
        if not names:
            continue
        name = names[0].partition("=")[2]
        role = name.partition("-")[0] + ("" if stack.processes.get(name) == pid else "'s children")
        largest[role] = max(largest[role], pages * os.sysconf("SC_PAGE_SIZE"))
    return largest


def redis_bytes(client: Any, run: str) -> tuple[int, int]:
    """What Redis uses beyond the record of what has happened, and that record."""
    keys = [run_key(run, "ledger"), run_key(run, "events")]
    history = sum(client.memory_usage(key, samples=0) or 0 for key in keys)
    return int(client.info("memory")["used_memory"]) - history, history


def flat(samples: list[int]) -> dict[str, Any]:
    """Medians of the second and the last quarter, in bytes, and whether that is flat."""
    quarter = max(1, len(samples) // 4)
    before = statistics.median(samples[quarter : 2 * quarter] or samples)
    after = statistics.median(samples[-quarter:])
    grown = after > before * GROWTH and after > before + SLACK
    return {"before": int(before), "after": int(after), "flat": not grown}


def soak(chaos: Chaos, chance: random.Random) -> dict[str, Any]:
    """Kill and sample until the time is over; then cancel the run, and audit it."""
    run = chaos.submit(steps=1_000_000)
    chaos.reaches(run, 3)
    client = redis.Redis.from_url(chaos.stack.redis_url)
    began = time.monotonic()
    next_kill, next_sample = began + EVERY, began
    memory: dict[str, list[int]] = defaultdict(list)
    killed: Counter[str] = Counter()
    history = 0
    while (now := time.monotonic()) < began + 60 * MINUTES:
        if now >= next_kill:
            next_kill += EVERY
            victim = chance.choice(list(VICTIMS))
            # A learner that is being started again updates nothing for a while.
            limit = now + EVERY
            try:
                said = kill(chaos.stack, victim, chance, lambda: time.monotonic() > limit)  # noqa: B023
            except AssertionError as error:
                said, victim = str(error), "nothing"
            killed[victim] += 1
            record = chaos.record(run)
            print(f"{now - began:6.0f} s  step {record['step']:6d}  {said}", flush=True)
            if record["state"] in FINAL:
                break
        if now >= next_sample:
            next_sample += SAMPLED
            for role, size in resident(chaos.stack).items():
                memory[role].append(size)
            try:
                used, history = redis_bytes(client, run)
                memory["redis, beyond its history"].append(used)
            except redis.RedisError as error:
                print(f"{now - began:6.0f} s  Redis is away: {error}", flush=True)
        time.sleep(max(0.0, min(next_kill, next_sample) - time.monotonic()))
    client.close()
    record = chaos.record(run)
    if record["state"] not in FINAL:
        chaos.reaches(run, record["step"] + 3)
        chaos.api.post(f"/v1/runs/{run}/cancel")
        record = chaos.ended(run)
    audit = chaos.get(f"/v1/runs/{run}/audit")
    found = {role: flat(samples) for role, samples in sorted(memory.items())}
    clean = audit["lost"] == audit["duplicated"] == 0 and audit["max_staleness_seen"] <= ETA
    return {
        "seed": SEED,
        "minutes": MINUTES,
        "machine": describe(),
        "killed": dict(sorted(killed.items())),
        "state": record["state"],
        "steps": record["step"],
        "audit": audit,
        "history_bytes_per_step": round(history / max(record["step"], 1)),
        "memory": found,
        "passed": clean
        and record["state"] == "cancelled"
        and audit["trained"] == record["committed_step"] * GROUPS
        and all(one["flat"] for one in found.values()),
    }


def main() -> int:
    """Run it, write the result, and say where it is."""
    print(f"HEADRACE_CHAOS_SEED={SEED}: {MINUTES:g} minutes", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="headrace-soak-") as data,
        Stack(options(Path(data), ROLLOUTS)) as stack,
    ):
        chaos = Chaos(stack, Gateway(stack.gateway_url, still_there=stack.check))
        chaos.prepare()
        result = soak(chaos, random.Random(SEED))
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result["memory"], indent=2))
    print(f"{'passed' if result['passed'] else 'FAILED'}: {RESULT}")
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
