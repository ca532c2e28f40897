"""`headrace bench`: training at three bounds on staleness, and generation alone.

Only steady steps count. The first steps, with empty queues and cold caches, are left out. The run
is cancelled after the last measured step: its last steps would have nothing left to generate.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from bench.generation import generation_part
from bench.installation import Installation, failures, records, work_folder
from bench.runner import BenchFailed, BenchPart, BenchResults, Figures
from bench.workload import BATCH, model_config, run_config
from learner.metrics.mismatch_alarm import mismatch_problem

ETAS = (0, 1, 4)
GENERATION = "generation"
PARTS = (*(f"eta-{eta}" for eta in ETAS), GENERATION)
STEPS, QUICK_STEPS = 10, 4
Row = Mapping[str, Any]


class TooFewSteps(ValueError):
    """A run recorded fewer steps than are to be measured."""


def run(parts: Collection[str], quick: bool, steps: int | None, data: Path | None) -> BenchResults:
    """Measure `parts`, in `data` or in a folder that is deleted afterwards. A part that fails and
    Ctrl-C are noted in the results; the other parts are kept."""
    steps = steps or (QUICK_STEPS if quick else STEPS)
    results = BenchResults("training", {"parts": sorted(parts), "steps": steps, "quick": quick})
    with results.noting(), failures(), work_folder(data) as folder, Installation(folder) as up:
        first = up.finish(up.submit("demo_sft", "model", model_config()))
        model, weights = f"run:{first['id']}", up.data / first["checkpoint"]
        sides = {
            f"η = {eta}": partial(measure, up, model, eta, steps)
            for eta in ETAS
            if f"eta-{eta}" in parts
        }
        if sides:
            results.measure(BenchPart("training", sides))
        if GENERATION in parts:
            with generation_part(up, model, weights, quick) as part:
                results.measure(part)
    return results


def measure(installation: Installation, model: str, eta: int, steps: int) -> Figures:
    """Train `steps` steady steps with `max_staleness` eta. Raise BenchFailed if the run fails, or
    if vLLM and the learner do not compute the same."""
    # Until the queue is as full as η lets it get, and two more.
    warmup = eta + 2
    with failures(), installation.running("demo_grpo", f"eta-{eta}", run_config(model, eta)) as run:
        installation.reach(run, warmup + steps)
    rows = installation.metrics(run)
    for row in rows:
        # The workload computes in float32. Figures of a wrong computation are worth nothing.
        if problem := mismatch_problem(row, "float32", "float32", quantized=False):
            raise BenchFailed(f"step {row['step']}: {problem}")
    figures = steady(rows, warmup, steps, BATCH)
    # Step v makes version v.
    live = updates(records(installation.stack.log("rollout-0")), run, warmup + 1, warmup + steps)
    shares: dict[str, float] = {}
    if canary := live.get("canary scored, s"):
        # Without staleness workers sample only while the learner waits for groups.
        waiting = figures["learner waits for groups, share"] if eta == 0 else 1
        sampling = figures["seconds measured"] * waiting
        shares["canary, share of generation"] = median(canary) * steps / sampling
    return {**figures, **live, **shares}


def steady(rows: Sequence[Row], warmup: int, steps: int, batch: int) -> dict[str, float]:
    """The figures of a run's steady steps, from its metrics, step 1 first. Shares are of the wall
    time from the end of the last warm-up step to the end of the last measured step.

    `batch`: completions trained in a step. `warmup` is at least 1, because the window begins at
    the end of a step. Raise TooFewSteps if the run ended earlier.
    """
    if warmup < 1 or steps < 1:
        raise ValueError(f"warmup {warmup} and steps {steps} must both be at least 1")
    if len(rows) < warmup + steps:
        raise TooFewSteps(f"{len(rows)} steps were recorded; {warmup} + {steps} are needed")
    window = rows[warmup : warmup + steps]
    seconds = float(window[-1]["time"]) - float(rows[warmup - 1]["time"])
    tokens = [round(row["response/tokens_mean"] * batch) for row in window]
    wire = sum(row["wire/bytes_per_token"] * n for row, n in zip(window, tokens, strict=True))

    def total(name: str) -> float:
        return sum(float(row[name]) for row in window)

    return {
        "seconds measured": seconds,
        "trained samples/s": batch * steps / seconds,
        "trained tokens/s": sum(tokens) / seconds,
        "step, median s": median(row["time/step"] for row in window),
        "learner waits for groups, share": total("time/waiting_for_groups") / seconds,
        "learner trains, share": total("time/training") / seconds,
        "workers wait for admission, share": total("time/workers_waiting_for_admission") / seconds,
        "staleness, mean versions": total("staleness/mean") / steps,
        "bytes per token on the wire": wire / sum(tokens),
    }


def updates(records: Sequence[Row], run: str, first: int, last: int) -> dict[str, list[float]]:
    """Seconds of each weight update of `run` to the versions `first` to `last`, from the worker's
    log. Empty if newer versions overtook all of them."""
    window = [
        record
        for record in records
        if record.get("event") == "weights live"
        and record.get("run") == run
        and first <= int(str(record["version"]).rpartition(":")[2]) <= last
    ]
    figures = {}
    for name, key in (
        ("step end → version live, s", "seconds"),
        ("generation paused, s", "paused"),
        ("canary scored, s", "canary_seconds"),
    ):
        # A model with too short a context has no canary.
        if values := [float(record[key]) for record in window if record[key] is not None]:
            figures[name] = values
    return figures
