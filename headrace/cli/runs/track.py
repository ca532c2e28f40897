"""`headrace track`: a run's metrics, carried to an experiment tracker from the user's own machine.

A run whose config has `tracking` needs no command: the installation carries it. This command is for
other runs, also finished ones, with the keys and packages of the user's machine.
"""

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import AsJson, GatewayURL, Run, connect
from headrace.cli.output import FINAL, INTERRUPTED, CliError, err, escape, out, print_json
from headrace.cli.runs.chains import run_of
from headrace.wording import counted

if TYPE_CHECKING:
    from headrace.cli.client import Gateway
    from headrace.trackers import Tracker

LOOK_SECONDS = 5.0
LATE = 200
"""Rows of an evaluation come after rows of later steps: each look goes back this number of steps,
and the last look begins at the first step."""


def track(
    run: Run,
    tensorboard: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Write event files, in a folder of the run's own there."
        ),
    ] = None,
    wandb: Annotated[
        str | None,
        typer.Option(metavar="PROJECT", help="Log to this project; WANDB_* variables hold."),
    ] = None,
    mlflow: Annotated[
        str | None,
        typer.Option(metavar="EXPERIMENT", help="Log to this experiment; MLFLOW_* variables hold."),
    ] = None,
    trackio: Annotated[
        str | None, typer.Option(metavar="PROJECT", help="Log to this project of Trackio.")
    ] = None,
    as_json: AsJson = False,
    gateway: GatewayURL = None,
) -> None:
    """Carry RUN's metrics to an experiment tracker.

    It begins at the first step and goes on until RUN ends. Ctrl-C leaves the run running; the same
    command goes on. A run with `tracking` in its config needs no command.

    Example:
    headrace track RUN --wandb my-project
    """
    from headrace.trackers import TensorBoardFiles, TrackerFailed, opened

    named = {"wandb": wandb, "mlflow": mlflow, "trackio": trackio}
    options = {name: value for name, value in named.items() if value is not None}
    if tensorboard is None and not options:
        raise CliError("say where to: --tensorboard FOLDER, --wandb PROJECT, or another tracker")
    api = connect(gateway)
    record = run_of(api, run)
    run = record["id"]
    trackers: dict[str, Tracker] = {}
    state = ""
    try:
        if tensorboard is not None:
            trackers["tensorboard"] = TensorBoardFiles(tensorboard, record)
        for name, value in options.items():
            chosen = {"experiment" if name == "mlflow" else "project": value}
            trackers[name] = opened(name, chosen, record, None)
        places = {name: tracker.place for name, tracker in trackers.items()}
        if not as_json:
            for name, place in places.items():
                out.print(f"{escape(record['name'])} ({record['id']}) to {name}: {escape(place)}")
        rows, state = carry(api, record["id"], list(trackers.values()))
    except TrackerFailed as error:
        raise CliError(str(error)) from None
    except KeyboardInterrupt:
        again = f"{record['id']} goes on, if it was not over; the same command goes on tracking it"
        err.print(f"[dim]{again}[/]")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        with contextlib.ExitStack() as stack:
            for tracker in trackers.values():
                stack.callback(tracker.close, state)
    if as_json:
        print_json({"run": record["id"], "state": state, "rows": rows, **places})
    else:
        out.print(f"[green]tracked[/] {counted(rows, 'row')}; the run is over: {state}")


def carry(api: "Gateway", run: str, trackers: Sequence["Tracker"]) -> tuple[int, str]:
    """Log each row of `run` once to each tracker, until the run is over. Return the number of rows
    and the run's state. Raise CliError if the gateway stays away."""
    from headrace.cli.client import PATIENCE, Away
    from headrace.metric_rows import by_set
    from headrace.trackers import Carried

    known = [tracker.carried or Carried() for tracker in trackers]
    seen, count, heard = Carried(), 0, time.monotonic()
    while True:
        try:
            state = str(api.get(f"/v1/runs/{run}")["state"])
            after = -1 if state in FINAL else max(seen.step - LATE, -1)
            pages = api.pages(f"/v1/runs/{run}/metrics", "metrics", after_step=after)
            rows = [by_set(row) for row in pages]
            for tracker, carried in zip(trackers, known, strict=True):
                tracker.log(carried.new(rows))
            count += len(seen.new(rows))
            heard = time.monotonic()
            if state in FINAL:
                return count, state
        except Away:
            if time.monotonic() - heard > PATIENCE:
                raise
        time.sleep(LOOK_SECONDS)
