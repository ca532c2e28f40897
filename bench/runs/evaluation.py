"""`python -m bench.runs.evaluation`: what an evaluation of 200 rows costs a run while it trains.

The workload of `headrace bench` at η = 1, with an evaluation of 200 held-out rows with 4 samples
each every 8 steps: trained tokens/s in three steps before it, in the steps during it, and in three
steps after it. Every process for real, one worker.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.installation import Installation, exit_code, work_folder
from bench.runs.workload import BATCH, model_config, run_config

EVERY, BESIDE = 8, 3
HELD_OUT = {
    "dataset": "demo-test",
    "rows": 200,
    "samples": 4,
    "temperature": 1.0,
    "every": EVERY,
    "at_start": False,
}


def windows(
    rows: Sequence[dict[str, Any]], step: int, ended: float
) -> tuple[float, float, float] | None:
    """Tokens/s before, during and after the evaluation of `step`, which ended at this time; None
    where not enough steps followed. `rows`: of all steps, step 1 first."""
    during = [row["step"] for row in rows if row["step"] > step and row["time"] <= ended]
    # The step in which it ended belongs to it.
    last = max(during, default=step) + 1
    if step <= BESIDE or last + BESIDE > len(rows):
        return None

    def rate(first: int, until: int) -> float:
        """From the end of step `first` to the end of step `until`."""
        tokens = sum(row["response/tokens_mean"] * BATCH for row in rows[first:until])
        return float(tokens / (rows[until - 1]["time"] - rows[first - 1]["time"]))

    return rate(step - BESIDE, step), rate(step, last), rate(last, last + BESIDE)


def measure(installation: Installation, evaluations: int) -> None:
    """Print a table. Raises BenchFailed."""
    first = installation.finish(installation.submit("demo_sft", "model", model_config()))
    config = run_config(f"run:{first['id']}", 1) | {"evaluation": HELD_OUT}
    with installation.running("demo_grpo", "evaluated", config) as run:
        installation.reach(run, EVERY * (evaluations + 1))
    found = list(installation.api.pages(f"/v1/runs/{run}/metrics", "metrics", "start"))
    steps = [row for row in found if "time/step" in row]
    print("| Evaluation of step | before | during | after |\n| --- | ---: | ---: | ---: |")
    for row in found:
        if "evaluation/step" not in row:
            continue
        rates = windows(steps, int(row["evaluation/step"]), row["time"])
        if rates is not None:
            said = " | ".join(f"{rate:,.0f}" for rate in rates)
            print(f"| {row['evaluation/step']:.0f} | {said} |", flush=True)


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--evaluations", type=int, default=3)
    parser.add_argument("--data", type=Path, help="work there, and keep what is made")
    given = parser.parse_args()

    def measured() -> None:
        print(f"Load average before: {os.getloadavg()[0]:.1f}", flush=True)
        with work_folder(given.data) as data, Installation(data) as installation:
            measure(installation, given.evaluations)
        print(f"Load average after: {os.getloadavg()[0]:.1f}")

    return exit_code(measured)


if __name__ == "__main__":
    sys.exit(main())
