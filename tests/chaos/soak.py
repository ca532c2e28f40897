"""`make soak`: one long run, a random kill every 20 s, and whether anything grows meanwhile.

HEADRACE_SOAK_MINUTES (30), HEADRACE_CHAOS_SEED, HEADRACE_SOAK_RESULT (the file, JSON). Exit code 0:
the audit is clean and memory flat. Recovery is the time from a kill until the run was further than
at the kill (or the next kill came). What each process has resident is sampled by its part, the
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

from bench.runner import machine
from headrace.cli.client import Gateway
from services.launch import Stack
from services.runtime.process import PART, marked
from services.store.keys import run_key
from tests.chaos.killing import ETA, FINAL, GROUPS, SEED, Chaos, options
from tests.chaos.victims import VICTIMS, kill

MINUTES = float(os.environ.get("HEADRACE_SOAK_MINUTES", "30"))
RESULT = Path(os.environ.get("HEADRACE_SOAK_RESULT", "soak.json"))
ROLLOUTS = 3
EVERY = 20.0
SAMPLED = 5.0
LOOK = 0.2
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
    """Return the bytes of Redis without the run's ledger and events, and the bytes of both."""
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


class Soak:
    """One run under kills, and what is noted meanwhile."""

    def __init__(self, chaos: Chaos, chance: random.Random) -> None:
        self.chaos, self.chance = chaos, chance
        self.run = chaos.submit(steps=1_000_000)
        self.memory: dict[str, list[int]] = defaultdict(list)
        self.killed: Counter[str] = Counter()
        self.recovery: dict[str, list[float]] = defaultdict(list)
        self.history = 0
        self._watched: tuple[str, float, int] | None = None

    def go_on(self, seconds: float) -> None:
        """Kill and sample for `seconds`, or until the run is over."""
        began = time.monotonic()
        next_kill, next_sample = began + EVERY, began
        while (now := time.monotonic()) < began + seconds:
            self._look(over=False)
            if now >= next_kill:
                next_kill += EVERY
                said = self._kill()
                record = self.chaos.record(self.run)
                print(f"{now - began:6.0f} s  step {record['step']:6d}  {said}", flush=True)
                if record["state"] in FINAL:
                    return
            if now >= next_sample:
                next_sample += SAMPLED
                self._sample()
            wait = min(next_kill, next_sample) - time.monotonic()
            time.sleep(max(0.0, min(wait, LOOK) if self._watched else wait))

    def end(self) -> dict[str, Any]:
        """Cancel the run, audit it, and say what was found."""
        chaos, run = self.chaos, self.run
        record = chaos.record(run)
        if record["state"] not in FINAL:
            chaos.reaches(run, record["step"] + 3)
            chaos.api.post(f"/v1/runs/{run}/cancel")
            record = chaos.ended(run)
        audit = chaos.get(f"/v1/runs/{run}/audit")
        memory = {role: flat(samples) for role, samples in sorted(self.memory.items())}
        clean = audit["lost"] == audit["duplicated"] == 0 and audit["max_staleness_seen"] <= ETA
        return {
            "seed": SEED,
            "minutes": MINUTES,
            "machine": machine(),
            "killed": dict(sorted(self.killed.items())),
            "recovery_seconds": {
                victim: {"median": statistics.median(seconds), "longest": max(seconds)}
                for victim, seconds in sorted(self.recovery.items())
            },
            "state": record["state"],
            "steps": record["step"],
            "audit": audit,
            "history_bytes_per_step": round(self.history / max(record["step"], 1)),
            "memory": memory,
            "passed": clean
            and record["state"] == "cancelled"
            and audit["trained"] == record["committed_step"] * GROUPS
            and all(one["flat"] for one in memory.values()),
        }

    def _kill(self) -> str:
        """Kill one process, and describe the kill."""
        self._look(over=True)
        victim, step = self.chance.choice(list(VICTIMS)), self.chaos.record(self.run)["step"]
        # A learner that is being started again updates nothing for a while.
        limit = time.monotonic() + EVERY
        try:
            said = kill(self.chaos.stack, victim, self.chance, lambda: time.monotonic() > limit)
        except AssertionError as error:
            self.killed["nothing"] += 1
            return str(error)
        self.killed[victim] += 1
        self._watched = (victim, time.monotonic(), step)
        return said

    def _look(self, over: bool) -> None:
        """Note what the newest kill cost: once the run is further, or where the next comes."""
        if self._watched is None:
            return
        victim, killed, step = self._watched
        if over or self.chaos.record(self.run)["step"] > step:
            self.recovery[victim].append(round(time.monotonic() - killed, 1))
            self._watched = None

    def _sample(self) -> None:
        for role, size in resident(self.chaos.stack).items():
            self.memory[role].append(size)
        try:
            with redis.Redis.from_url(self.chaos.stack.redis_url) as client:
                used, self.history = redis_bytes(client, self.run)
        except redis.RedisError as error:
            print(f"Redis is away: {error}", flush=True)
        else:
            self.memory["redis, beyond its history"].append(used)


def main() -> int:
    """Run the soak test, write the result, and print its path."""
    print(f"HEADRACE_CHAOS_SEED={SEED}: {MINUTES:g} minutes", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="headrace-soak-") as data,
        Stack(options(Path(data), ROLLOUTS)) as stack,
    ):
        chaos = Chaos(stack, Gateway(stack.gateway_url, stack.check, stack.api_key))
        chaos.prepare()
        soak = Soak(chaos, random.Random(SEED))
        chaos.reaches(soak.run, 3)
        soak.go_on(60 * MINUTES)
        result = soak.end()
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps({name: result[name] for name in ("recovery_seconds", "memory")}, indent=2))
    print(f"{'passed' if result['passed'] else 'FAILED'}: {RESULT}")
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
