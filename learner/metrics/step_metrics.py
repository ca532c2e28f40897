"""A step's metrics from measurements, named as in docs/metrics.md."""

import math
import resource
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from services.contracts.records import WorkerRecord


class Stopwatch:
    """Seconds of a step's wall time on this rank, by activity."""

    def __init__(self, *activities: str) -> None:
        self.seconds = dict.fromkeys(activities, 0.0)
        self._last = time.monotonic()

    def lap(self, activity: str) -> None:
        now = time.monotonic()
        self.seconds[activity] += now - self._last
        self._last = now


def time_metrics(
    spent: Mapping[str, float], samples: int, tokens: int, prompt_tokens: int
) -> dict[str, float]:
    """Return the step's times and its throughput. `spent`: seconds by activity; `tokens`:
    completion tokens."""
    total = max(sum(spent.values()), 1e-9)
    return {
        "time/step": sum(spent.values()),
        "time/waiting_for_groups": spent["waiting"],
        "time/training": spent["training"],
        "time/publishing": spent["publishing"],
        "time/checkpointing": spent["checkpointing"],
        "throughput/samples_per_second": samples / total,
        "throughput/tokens_per_second": tokens / total,
        "throughput/learner_tokens_per_second": (tokens + prompt_tokens)
        / max(spent["training"], 1e-9),
    }


def staleness_metrics(distances: Sequence[int]) -> dict[str, float]:
    """Return mean, maximum and histogram (`staleness/count_D`: groups of staleness D) of a batch.
    Each group counts with its oldest token."""
    counts = Counter(distances)
    return {
        "staleness/mean": sum(distances) / max(len(distances), 1),
        "staleness/max": float(max(distances, default=0)),
        **{f"staleness/count_{d}": float(n) for d, n in sorted(counts.items())},
    }


def admission_wait(
    before: dict[str, float], workers: Sequence[WorkerRecord]
) -> tuple[float, dict[str, float]]:
    """Return the mean seconds that the workers waited for admission since `before` (totals by
    worker id), and the new totals. A new or restarted worker counts from now on. A worker that only
    evaluates does not count."""
    now = {
        worker.id: worker.admission_wait_seconds for worker in workers if not worker.evaluation_only
    }
    grown = [total - before[id_] for id_, total in now.items() if id_ in before]
    waits = [max(wait, 0.0) for wait in grown]
    return (sum(waits) / len(waits) if waits else 0.0), now


def canary_metrics(workers: Sequence[WorkerRecord]) -> dict[str, float]:
    """Return the largest difference between a worker's vLLM and the learner on the canary's
    sequences."""
    gaps = [worker.canary_gap for worker in workers if worker.canary_gap is not None]
    return {"mismatch/canary": max(gaps)} if gaps else {}


# A side that waits for less than this share of the step is not held up by the other side.
IDLE_SHARE = 0.05


def bottleneck(total: float, learner_waits: float, workers_wait: float) -> str:
    """Return the side that the run waits for: `rollout` (the learner waits for groups), `learner`
    (workers wait for admission), or `none` (both are busy)."""
    limit = IDLE_SHARE * total
    if learner_waits <= limit and workers_wait <= limit:
        return "none"
    return "rollout" if learner_waits >= workers_wait else "learner"


def finite(row: dict[str, Any]) -> dict[str, Any]:
    """Return `row` with null for NaN and infinity (a gradient norm that overflowed), which JSON
    cannot express."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in row.items()
    }


def memory_metrics() -> dict[str, float]:
    """Return the peak memory of rank 0: on the GPU if there is one, else resident memory."""
    if torch.cuda.is_available():
        return {
            "memory/peak_bytes": float(torch.cuda.max_memory_allocated()),
            "memory/reserved_peak": float(torch.cuda.max_memory_reserved()),
        }
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"memory/peak_bytes": float(resident * 1024)}
