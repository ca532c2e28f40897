"""`headrace bench`: how fast this installation is on this machine. docs/benchmarks.md defines each
figure; the package `bench` measures."""

import json
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.options import AsJson
from headrace.cli.output import FAILED, INTERRUPTED, CliError, err, escape, out


def bench(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer steps and rounds.")] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="PART", help="eta-0, eta-1, eta-4 or generation; repeatable."),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Steps measured of each training run.", min=1)
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Work here and keep it. Default: a temporary folder.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure training and generation on this machine.

    docs/benchmarks.md says how, and how long it takes. Exit code 1 if a part could not be measured.

    Example:
    headrace bench --quick
    """
    from bench import runner
    from bench.training import PARTS, run

    if unknown := sorted(set(only or ()) - set(PARTS)):
        raise CliError(f"there is no part {', '.join(unknown)}; there is {', '.join(PARTS)}")
    results = run(only or PARTS, quick, steps, data)
    path = results.keep()
    # With --json, stdout is for programs alone.
    console = err if as_json else out
    console.print(results.text(), markup=False, soft_wrap=True)
    console.print(f"[dim]all figures: {escape(str(path))}[/]", soft_wrap=True)
    if as_json:
        typer.echo(json.dumps(results.as_json(), ensure_ascii=False))
    if runner.INTERRUPTED in results.failed.values():
        raise typer.Exit(INTERRUPTED)
    if results.failed:
        raise typer.Exit(FAILED)
