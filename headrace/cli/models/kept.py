"""`headrace checkpoints`: list, pin and download the checkpoints of a run."""

from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli.options import AsJson, GatewayURL, Run, connect
from headrace.cli.output import CliError, ago, out, print_json, size, table
from headrace.cli.runs.chains import run_of

Step = int | None


def checkpoints(
    run: Run,
    pin: Annotated[Step, typer.Option(metavar="STEP", help="Keep this one for good.")] = None,
    unpin: Annotated[Step, typer.Option(metavar="STEP", help="Take its pin away.")] = None,
    download: Annotated[
        Step, typer.Option(metavar="STEP", help="Write this one as a tar archive.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to. Default: RUN-step-STEP.tar.")
    ] = None,
    as_json: AsJson = False,
    gateway: GatewayURL = None,
) -> None:
    """List the checkpoints of RUN, or pin or download one.

    Example:
    headrace checkpoints RUN --pin 200
    headrace checkpoints RUN --download 200 --to model.tar
    """
    if sum(step is not None for step in (pin, unpin, download)) > 1:
        raise CliError("name one of --pin, --unpin and --download at a time")
    api = connect(gateway)
    path = f"/v1/runs/{run_of(api, run)['id']}/checkpoints"
    if download is not None:
        target = to or Path(f"{run}-step-{download}.tar")
        written = api.download(f"{path}/{download}/download", target)
        out.print(f"{target}: {size(written)}", markup=False, soft_wrap=True)
        return
    if pin is not None:
        api.post(f"{path}/{pin}/pin")
    if unpin is not None:
        api.post(f"{path}/{unpin}/unpin")
    listed: list[dict[str, Any]] = list(api.pages(path, "checkpoints"))
    if as_json:
        print_json(listed)
        return
    rows = []
    for each in listed:
        marks = [mark for mark in ("current", "pinned") if each[mark]]
        rows.append(
            (str(each["step"]), size(each["bytes"]), ago(each["created"]), ", ".join(marks))
        )
    table(("STEP", "SIZE", "MADE", ""), rows, "no checkpoint yet")
