"""`headrace track`: a run's metrics, carried to TensorBoard or Weights & Biases.

The command runs on the user's machine, not in the learner. Only the user's machine needs the
tracker's key, network and packages, and a tracker's failure does not touch training. A finished run
can be tracked too.
"""

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from services.cli.options import AsJson, GatewayURL, Run, connect
from services.cli.output import INTERRUPTED, CliError, err, escape, out, print_json
from services.contracts.wording import counted


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
    """Carry RUN's metrics to TensorBoard or Weights & Biases.

    It begins at the first step and goes on until RUN ends. Ctrl-C leaves the run running; the same
    command goes on.

    Example:
    headrace track RUN --wandb my-project
    """
    from services.cli.runs.experiment_trackers import TensorBoard, Tracker, WeightsAndBiases, carry

    if tensorboard is None and wandb is None:
        raise CliError("say where to: --tensorboard FOLDER, --wandb PROJECT, or both")
    api = connect(gateway)
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
        out.print(f"[green]tracked[/] {counted(rows, 'row')}; the run is over: {state}")
