"""`headrace track`: a run's metrics, carried to TensorBoard or Weights & Biases.

Runs beside the user, not in the learner: what a tracker needs (a key, a network, packages) and what
goes wrong with it is no concern of training, and a run that is over can be tracked as well.
"""

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from services.cli.client import PATIENCE, Away, Gateway, GatewayURL
from services.cli.output import INTERRUPTED, AsJson, CliError, err, out, print_json
from services.cli.runs import Run
from services.cli.trackers import TensorBoard, Tracker, WeightsAndBiases, place_of
from services.contracts.records import RunState

EVERY = 5.0
"""Seconds between two looks."""
LATE = 200
"""Rows of an evaluation come after those of steps that were trained meanwhile: so far back is
looked again each time, and at the end from the beginning."""
PAGE = 10_000

Row = dict[str, Any]


def register(root: typer.Typer) -> None:
    """Add the command to the root."""
    root.command()(track)


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
    as_json: AsJson = False,
    gateway: GatewayURL = None,
) -> None:
    """Carry RUN's metrics to TensorBoard or Weights & Biases until it ends, from its first step on;
    a run that is over at once.

    Ctrl-C leaves the run running; the same command goes on.
    """
    if tensorboard is None and wandb is None:
        raise CliError("say where to: --tensorboard FOLDER, --wandb PROJECT, or both")
    api = Gateway(gateway)
    record = api.get(f"/v1/runs/{run}")
    trackers: list[Tracker] = []
    state = ""
    try:
        if tensorboard is not None:
            trackers.append(TensorBoard(tensorboard, record))
        if wandb is not None:
            trackers.append(WeightsAndBiases(wandb, record))
        places = {tracker.name: tracker.place for tracker in trackers}
        if not as_json:
            for name, place in places.items():
                out.print(f"{escape(record['name'])} ({record['id']}) to {name}: {escape(place)}")
        rows, state = carry(api, record["id"], trackers)
    except KeyboardInterrupt:
        again = f"{record['id']} goes on, if it was not over; the same command goes on tracking it"
        err.print(f"[dim]{again}[/]")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        with contextlib.ExitStack() as stack:
            for tracker in trackers:
                stack.callback(tracker.close, state)
    if as_json:
        print_json({"run": record["id"], "state": state, "rows": rows, **places})
    else:
        out.print(f"[green]tracked[/] {rows:,} rows; the run is over: {state}")


def carry(api: Gateway, run: str, trackers: Sequence[Tracker]) -> tuple[int, RunState]:
    """Log each row of `run` once to each tracker, until the run is over. Returns the number of rows
    and the run's state. Raises CliError where the gateway stays away."""
    seen: set[tuple[str, int]] = set()
    newest, heard = -1, time.monotonic()
    while True:
        try:
            state = RunState(api.get(f"/v1/runs/{run}")["state"])
            after = -1 if state.final else newest - LATE
            for row in _rows(api, run, after):
                if (place := place_of(row)) not in seen:
                    seen.add(place)
                    newest = max(newest, place[1])
                    for tracker in trackers:
                        tracker.log(row)
            heard = time.monotonic()
            if state.final:
                return len(seen), state
        except Away:
            if time.monotonic() - heard > PATIENCE:
                raise
        time.sleep(EVERY)


def _rows(api: Gateway, run: str, after: int) -> list[Row]:
    """Rows of steps after `after`, some twice."""
    rows: list[Row] = []
    while True:
        found = api.get(f"/v1/runs/{run}/metrics", after=max(after, -1), limit=PAGE)["metrics"]
        rows += found
        if len(found) < PAGE:
            return rows
        # Evaluations of steps that are on this page may be on the next one.
        after = place_of(found[-1])[1] - LATE
