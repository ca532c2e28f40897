"""`python -m bench.recipes`: whether each recipe learns, and what old answers do to an objective.

Every process for real, as `headrace up` starts them; one run after the other, all from the same
model, which a run of `demo_sft` makes first. What a run has found is appended to a file, and a
run that is there already is not made again: stop whenever you like, and start again.
docs/recipes.md says what the figures mean.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.installation import CANNOT, BenchFailed, Installation
from bench.recipes.tables import newest, publish, tables
from bench.recipes.trials import (
    ETA,
    SEEDS,
    STEPS,
    Outcome,
    Trial,
    append,
    left,
    of_reinforcement_learning,
    read,
    recipe_trials,
    staleness_trials,
)
from bench.results import RESULTS, commit
from services.cli.output import CliError
from services.settings import Settings
from services.volume import checksum

START = "start"


def run(trials: Sequence[Trial], file: Path, data: Path) -> list[str]:
    """Make the runs of which `file` has no outcome. Returns those that failed; the others are made
    nevertheless. Raises LaunchError, CliError, BenchFailed if none can be made."""
    failed = []
    with Installation(data) as installation:
        cancel_what_was_interrupted(installation)
        model = the_start(installation)
        start = checksum(installation.data / model["checkpoint"] / "model.safetensors")
        todo = left(trials, read(file), start)
        print(f"{len(todo)} of {len(trials)} runs are missing", flush=True)
        for number, trial in enumerate(todo, 1):
            try:
                outcome = measure(installation, f"run:{model['id']}", start, trial)
            except BenchFailed as error:
                failed.append(f"{trial.name}, seed {trial.seed}")
                print(f"{failed[-1]}: {error}", flush=True)
                continue
            append(file, outcome)
            print(
                f"{number}/{len(todo)} {trial.name}, seed {trial.seed}: held-out reward "
                f"{outcome.before:.3f} → {outcome.after:.3f}, {outcome.seconds:.0f} s",
                flush=True,
            )
    return failed


def cancel_what_was_interrupted(installation: Installation) -> None:
    """Runs of a benchmark that was killed would go on before ours."""
    for record in installation.api.pages("/v1/runs", "runs"):
        if record["state"] not in ("succeeded", "failed", "cancelled"):
            # One that ends meanwhile refuses (409).
            with suppress(CliError):
                installation.api.post(f"/v1/runs/{record['id']}/cancel")


def the_start(installation: Installation) -> dict[str, Any]:
    """The record of the run that made the model: an earlier one, or a new one."""
    for record in installation.api.pages("/v1/runs", "runs"):
        if record["name"].startswith(f"bench-{START}-") and record["state"] == "succeeded":
            found: dict[str, Any] = installation.api.get(f"/v1/runs/{record['id']}")
            return found
    return installation.finish(installation.submit("demo_sft", START, {}))


def measure(installation: Installation, model: str, start: str, trial: Trial) -> Outcome:
    """Make one run. Raises BenchFailed."""
    began = time.monotonic()
    config = trial.config | {"model": trial.config["model"] | {"path": model}}
    record = installation.finish(installation.submit(None, trial.name, config))
    rows = list(installation.api.pages(f"/v1/runs/{record['id']}/metrics", "metrics", "start"))
    held_out = [row["evaluation/reward"] for row in rows if "evaluation/reward" in row]
    steps = [row for row in rows if "time/step" in row]
    return Outcome(
        part=trial.part,
        name=trial.name,
        seed=trial.seed,
        steps=trial.config["training"]["max_steps"],
        eta=trial.config["rollout"]["max_staleness"],
        key=trial.key,
        start=start,
        before=held_out[0],
        after=held_out[-1],
        rewards=[round(row["reward/mean"], 4) for row in steps],
        staleness=fmean(row["staleness/mean"] for row in steps),
        seconds=round(time.monotonic() - began, 1),
        commit=commit(),
    )


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.recipes", description=__doc__)
    parser.add_argument(
        "--recipe", action="append", choices=of_reinforcement_learning(), help="repeatable"
    )
    parser.add_argument("--only", choices=("recipes", "staleness"), help="default: both")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"of each ({SEEDS})")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of each run ({STEPS})")
    parser.add_argument(
        "--eta", type=int, default=ETA, help=f"bound on staleness, of that comparison ({ETA})"
    )
    parser.add_argument("--results", type=Path, default=RESULTS / "recipes.jsonl", help="the file")
    parser.add_argument(
        "--data", type=Path, default=Settings().data / "bench-recipes", help="to work in"
    )
    parser.add_argument(
        "--publish", action="store_true", help="make no runs; write docs/recipes.md from the file"
    )
    given = parser.parse_args(arguments)
    if given.publish and (given.recipe or given.only):
        parser.error("--publish writes the whole page: leave --recipe and --only out")
    return given


def main() -> int:
    """Make the missing runs, then show everything. 1 if a run failed; one that does not learn is
    shown, not an error."""
    given = parsed()
    trials: list[Trial] = []
    if given.only != "staleness":
        names = given.recipe or of_reinforcement_learning()
        trials += recipe_trials(names, given.seeds, given.steps)
    if given.only != "recipes" and not given.recipe:
        trials += staleness_trials(given.seeds, given.steps, given.eta)
    if given.publish:
        publish(trials, read(given.results))
        return 0
    failed: list[str] = []
    try:
        failed = run(trials, given.results, given.data)
    except CANNOT as error:
        failed = [str(error)]
    except KeyboardInterrupt:
        failed = ["interrupted"]
    print(tables(newest(trials, read(given.results))))
    print(f"all figures: {given.results}")
    for one in failed:
        print(f"failed: {one}", file=sys.stderr)
    return 1 if failed else 0
