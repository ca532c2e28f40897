"""`headrace bench`: training at three bounds on staleness, and generation alone.

Only steady steps count: the first steps (empty queues, cold caches) are left out, and the run is
cancelled after the last one, so that no step counts during which nothing was left to generate.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench.installation import CANNOT, BenchFailed, Installation, records, work_folder
from bench.results import begun, table
from bench.runs import generation
from bench.runs.workload import BATCH, model_config, run_config
from learner.report.mismatch import mismatch_problem

ETAS = (0, 1, 4)
PARTS = (*(f"eta-{eta}" for eta in ETAS), "generation")
STEPS, QUICK_STEPS = 10, 4
MEASURED = ("median", "max")
"""Of what happens with each version."""
Row = Mapping[str, Any]
Say = Callable[[str], None]


class TooFewSteps(ValueError):
    """A run recorded fewer steps than are to be measured."""


def run(
    parts: Collection[str], quick: bool, steps: int | None, data: Path | None, say: Say
) -> dict[str, Any]:
    """Measure `parts`, in `data` or in a folder that is deleted afterwards. Never raises for a part
    that failed, nor for Ctrl-C: `failed` holds the part and the reason, and the rest is kept."""
    steps = steps or (QUICK_STEPS if quick else STEPS)
    results = begun("training") | {"training": {}, "generation": {}, "failed": {}}
    part = "start"
    try:
        say("starting every process")
        with work_folder(data) as folder, Installation(folder) as installation:
            say("making the model")
            first = installation.finish(installation.submit("demo_sft", "model", model_config()))
            model, weights = f"run:{first['id']}", installation.data / first["checkpoint"]
            for part in (name for name in PARTS if name in parts):
                try:
                    if part == "generation":
                        results[part] = generation.measure(installation, model, weights, quick, say)
                    else:
                        eta = int(part.removeprefix("eta-"))
                        found = measure(installation, model, eta, steps, say)
                        results["training"][part] = found
                except BenchFailed as error:
                    results["failed"][part] = str(error)
                    say(f"{part} failed: {error}")
    except KeyboardInterrupt:
        results["failed"][part] = "interrupted"
    except CANNOT as error:
        results["failed"][part] = str(error)
    return results


def measure(
    installation: Installation, model: str, eta: int, steps: int, say: Say
) -> dict[str, Any]:
    """Train `steps` steady steps with max_staleness `eta`. Raises BenchFailed."""
    # Until the queue is as full as η lets it get, and two more.
    warmup = eta + 2
    say(f"training at η = {eta}: {warmup} warm-up steps, {steps} measured")
    with installation.running("demo_grpo", f"eta-{eta}", run_config(model, eta)) as run:
        installation.reach(run, warmup + steps)
    rows = installation.metrics(run)
    found = steady(rows, warmup, steps, BATCH)
    for row in rows:
        # The workload computes in float32. Figures of a wrong computation are worth nothing.
        if problem := mismatch_problem(row, "float32", "float32", quantized=False):
            raise BenchFailed(f"step {row['step']}: {problem}")
    # Version v is what step v made: the window's first one came from its first step.
    live = updates(records(installation.stack.log("rollout-0")), run, warmup + 1, warmup + steps)
    if "canary_median" in live:
        # Without staleness workers sample only while the learner waits for groups.
        sampling = found["seconds"] * (found["learner_waits"] if eta == 0 else 1)
        live["canary_share"] = live["canary_median"] * steps / sampling
    say(f"  {found['samples_per_second']:.1f} samples/s")
    return {"eta": eta, **found, **live}


def steady(rows: Sequence[Row], warmup: int, steps: int, batch: int) -> dict[str, Any]:
    """A run over its steady steps, from its rows of metrics.jsonl, step 1 first. Seconds and shares
    are of the wall time from the end of the last warm-up step to the end of the last step.

    `batch`: completions trained in a step. `warmup` is at least 1, because the window begins at
    the end of a step. Raises TooFewSteps.
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
        "warmup": warmup,
        "steps": steps,
        "seconds": seconds,
        "samples": batch * steps,
        "tokens": sum(tokens),
        "samples_per_second": batch * steps / seconds,
        "tokens_per_second": sum(tokens) / seconds,
        "step_median": median(row["time/step"] for row in window),
        "learner_waits": total("time/waiting_for_groups") / seconds,
        "workers_wait": total("time/workers_waiting_for_admission") / seconds,
        "training": total("time/training") / seconds,
        "staleness": total("staleness/mean") / steps,
        "wire_bytes_per_token": wire / sum(tokens),
    }


def updates(records: Sequence[Row], run: str, first: int, last: int) -> dict[str, float]:
    """The weight updates of `run` to the versions `first` to `last`, from the worker's log: seconds
    until a version was live, for which generation paused, and that it took to have the canary
    scored. Empty if there were none (each was overtaken by a newer one)."""
    own = [
        record
        for record in records
        if record.get("event") == "weights live"
        and record.get("run") == run
        and first <= int(str(record["version"]).rpartition(":")[2]) <= last
    ]
    figures: dict[str, float] = {"updates": len(own)} if own else {}
    for name, key in (("live", "seconds"), ("pause", "paused"), ("canary", "canary_seconds")):
        # A model with too short a context has no canary.
        values = [float(record[key]) for record in own if record[key] is not None]
        if values:
            figures |= {f"{name}_median": median(values), f"{name}_max": max(values)}
    return figures


def text(results: Mapping[str, Any]) -> str:
    """The figures as tables, and what failed."""
    found = results["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    pieces = [
        f"{found['cores']} cores ({found['cpu']}), {found['memory']}; Python {found['python']}, "
        f"{versions}; commit {found['commit']}"
    ]
    if found["load_before"] > 0.5:
        pieces.append(f"Something else was running (load {found['load_before']}): too low figures.")
    if parts := list(results["training"].values()):
        rows = [["training", *(f"η = {one['eta']}" for one in parts)]]
        for label, form in (
            ("steps: warm-up + measured", "{warmup} + {steps}"),
            ("trained samples/s", "{samples_per_second:.1f}"),
            ("trained tokens/s", "{tokens_per_second:,.0f}"),
            ("step, median s", "{step_median:.2f}"),
            ("learner waits for groups", "{learner_waits:.0%}"),
            ("learner trains", "{training:.0%}"),
            ("workers wait for admission", "{workers_wait:.0%}"),
            ("staleness, mean versions", "{staleness:.2f}"),
            ("step end → version live, s, median / max", "{live_median:.3f} / {live_max:.3f}"),
            ("generation paused, s, median / max", "{pause_median:.3f} / {pause_max:.3f}"),
            ("canary scored, s, median / max", "{canary_median:.3f} / {canary_max:.3f}"),
            ("canary, share of generation", "{canary_share:.2%}"),
            ("bytes per token on the wire", "{wire_bytes_per_token:.2f}"),
        ):
            kinds = (f"{name}_{kind}" for name in ("live", "pause", "canary") for kind in MEASURED)
            nothing = dict.fromkeys((*kinds, "canary_share"), 0.0)
            rows.append([label, *(form.format_map(nothing | one) for one in parts)])
        pieces.append(table(rows))
    if part := results["generation"]:
        pieces.append(
            f"generation, tokens/s: rollout worker {part['worker_tokens_per_second']:,.0f}, "
            f"LLM.generate {part['offline_tokens_per_second']:,.0f}, ratio {part['ratio']:.3f}"
        )
    pieces += [f"{part} failed: {reason}" for part, reason in results["failed"].items()]
    return "\n\n".join(pieces)
