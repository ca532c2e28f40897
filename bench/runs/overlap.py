"""`python -m bench.runs.overlap`: how much of generation and training happens at the same time.

Sleeps stand in for the GPUs (`bench.simulated`); every other process is the product's own.
docs/benchmarks.md says what the figures mean.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.installation import LOGS, BenchFailed, Installation, exit_code, records
from bench.results import begun, keep, table
from bench.runs.training import Row, steady
from bench.simulated.gpus import (
    GENERATING,
    LONGEST,
    PROMPTS,
    SAMPLES,
    SEQUENCES,
    generation_seconds,
    ideal_seconds,
    synchronous_seconds_per_token,
)
from services.launch.options import ALL_PARTS
from services.runtime.process import die_with

ROOT = Path(__file__).parents[2]
ETAS = (0, 1, 2, 4, 8)
FULL, QUICK = 25, 8
"""Steps measured at each η."""
CONTEXT = 2 * LONGEST
BATCH = PROMPTS * SAMPLES
ENDLESS = 100_000
STAND_IN = {
    "HEADRACE_VLLM_COMMAND": f"{sys.executable} -m bench.simulated.vllm",
    "PYTHONPATH": str(ROOT),
}
MODEL: dict[str, Any] = {
    "model": {
        "hidden_size": 16,
        "layers": 1,
        "heads": 2,
        "intermediate_size": 16,
        "max_length": CONTEXT,
    },
    "training": {"max_steps": 2, "rows_per_step": 8},
}


def run_config(model: str, eta: int, stragglers: str) -> dict[str, Any]:
    """Over the recipe demo_grpo: without an end and without evaluation."""
    return {
        "model": {"path": model},
        "rewards": [{"verifier": "exact"}],
        "sampling": {"max_tokens": LONGEST},
        "rollout": {
            "max_staleness": eta,
            "vllm": {"max_model_len": CONTEXT, "max_num_seqs": SEQUENCES},
            "stragglers": stragglers,
        },
        "algorithm": {"prompts_per_step": PROMPTS, "samples_per_prompt": SAMPLES},
        "training": {"max_steps": ENDLESS},
        "evaluation": None,
    }


@contextmanager
def learner(installation: Installation, log: Path) -> Iterator[None]:
    """The learner that sleeps, for the length of the block."""
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.simulated.learner"],
            stdout=file,
            stderr=file,
            cwd=ROOT,
            preexec_fn=die_with(os.getpid()),
            env=os.environ
            | LOGS
            | {
                "HEADRACE_REDIS_URL": installation.stack.redis_url,
                "HEADRACE_DATA": str(installation.data),
                "OMP_NUM_THREADS": "1",
            },
        )

    def check() -> None:
        installation.stack.check()
        if process.poll() is not None:
            raise BenchFailed(f"the learner has ended: {log.read_text()[-2000:]}")

    installation.check = check
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def measure(
    installation: Installation, log: Path, eta: int, steps: int, config: dict[str, Any]
) -> dict[str, Any]:
    """`steps` steady steps at one bound on staleness. Raises BenchFailed."""
    warmup, before = eta + 3, requeued(log)
    with installation.running("demo_grpo", f"overlap-{eta}", config) as run:
        installation.reach(run, warmup + steps)
    audit = installation.api.get(f"/v1/runs/{run}/audit")
    if audit["lost"] or audit["duplicated"] or audit["max_staleness_seen"] > eta:
        raise BenchFailed(f"the audit at η = {eta}: {audit}")
    stale = requeued(log) - before
    return {
        **figures(installation.metrics(run), warmup, steps),
        "requeued": stale / (stale + audit["trained"]),
        "dropped": sum(audit["dropped"].values()) / audit["tasks"],
    }


def requeued(log: Path) -> int:
    """Groups that the learner has found too stale so far."""
    return sum(
        record["groups"]
        for record in records(log)
        if str(record.get("event")).startswith("stale groups")
    )


def figures(rows: Sequence[Row], warmup: int, steps: int) -> dict[str, Any]:
    """From a run's rows of metrics.jsonl.

    `share`: of what the slower side, always busy, would have trained in that time. `generating`:
    share of that time for which the generating GPUs would have had to be full to sample what was
    trained. `speedup`: over the same answers on the same GPUs without overlap.
    """
    found = steady(rows, warmup, steps, BATCH)
    tokens, seconds = found["tokens"], found["seconds"]
    return found | {
        "step": seconds / steps,
        "share": ideal_seconds(tokens) / seconds,
        "speedup": synchronous_seconds_per_token() * tokens / seconds,
        "generating": generation_seconds(tokens) / seconds,
        "tokens_per_answer": tokens / found["samples"],
    }


def run(etas: Sequence[int], steps: int, stragglers: str = "wait") -> dict[str, Any]:
    """Every η, one after the other. Raises BenchFailed, LaunchError."""
    results = begun("overlap") | {"stragglers": stragglers, "eta": {}}
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        log, parts = Path(folder) / "learner.log", ALL_PARTS - {"learner"}
        with (
            Installation(
                Path(folder) / "data",
                rollouts=GENERATING,
                parts=parts,
                environment=LOGS | STAND_IN,
            ) as installation,
            learner(installation, log),
        ):
            first = installation.finish(installation.submit("demo_sft", "model", MODEL))
            for eta in etas:
                config = run_config(f"run:{first['id']}", eta, stragglers)
                results["eta"][str(eta)] = measure(installation, log, eta, steps, config)
    return results


def text(results: Mapping[str, Any]) -> str:
    """The figures as a table."""
    found = results["eta"]
    rows = [["", *(f"η = {eta}" for eta in found)]]
    for label, name, form in (
        ("throughput, share of ideal", "share", "{:.2f}"),
        ("times the synchronous one", "speedup", "{:.2f}"),
        ("step, s", "step", "{:.2f}"),
        ("learner waits for groups", "learner_waits", "{:.0%}"),
        ("workers wait for admission", "workers_wait", "{:.0%}"),
        ("staleness, mean versions", "staleness", "{:.2f}"),
        ("groups requeued as stale", "requeued", "{:.1%}"),
        ("tasks dropped", "dropped", "{:.1%}"),
        ("tokens per answer", "tokens_per_answer", "{:.0f}"),
    ):
        rows.append([label, *(form.format(one[name]) for one in found.values())])
    return table(rows)


def main() -> int:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description="How much of generation and training overlaps.")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} steps instead of {FULL}")
    parser.add_argument("--eta", type=int, action="append", help="repeatable")
    parser.add_argument("--stragglers", choices=("wait", "resample"), default="wait")
    given = parser.parse_args()

    def measured() -> None:
        results = run(given.eta or ETAS, QUICK if given.quick else FULL, given.stragglers)
        print(f"{text(results)}\nall figures: {keep(results)}")

    return exit_code(measured)


if __name__ == "__main__":
    sys.exit(main())
