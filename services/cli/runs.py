"""`headrace runs`, `watch`, `cancel` and `rm`."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from services.cli.options import AsJson, GatewayURL, Run, connect
from services.cli.output import CliError, ago, err, escape, out, print_json, size, state, table

if TYPE_CHECKING:
    from services.cli.client import Gateway

PAGE = 1000
"""Runs asked for at once."""


def runs(as_json: AsJson = False, gateway: GatewayURL = None) -> None:
    """All runs, newest first."""
    records = list(connect(gateway).pages("/v1/runs", "runs", limit=PAGE))
    if as_json:
        print_json(records)
        return
    table(
        ("ID", "NAME", "KIND", "STATE", "STEP", "CREATED", "SIZE", "REASON"),
        [
            (
                record["id"],
                f"[bold]{escape(record['name'])}[/]",
                record["kind"],
                state(record["state"]),
                f"{record['step']}/{record['max_steps'] or '?'}",
                ago(record["created"]),
                size(record["disk_bytes"]),
                escape(record["reason"]),
            )
            for record in records
        ],
        "no runs: submit one with `headrace submit RECIPE` (see `headrace recipes`)",
    )


def watch(run: Run, as_json: AsJson = False, gateway: GatewayURL = None) -> None:
    """Follow RUN until it ends: exit code 0 succeeded, 1 not. Ctrl-C leaves it running.

    With --json each event is one line of JSON.
    """
    api = connect(gateway)
    follow_run(api, api.get(f"/v1/runs/{run}")["id"], as_json)


def follow_run(api: "Gateway", run: str, as_json: bool) -> None:
    """Show `run` until it ends; then end the command."""
    from services.cli.watch import watch_run

    raise typer.Exit(watch_run(api, run, as_json))


def cancel(run: Run, as_json: AsJson = False, gateway: GatewayURL = None) -> None:
    """Cancel RUN; `headrace resume RUN` continues it later from its checkpoint."""
    api = connect(gateway)
    before = api.get(f"/v1/runs/{run}")
    record = api.post(f"/v1/runs/{before['id']}/cancel")
    if as_json:
        print_json(record)
        return
    again = before["state"] in ("cancelling", "cancelled")
    name = f"{escape(record['name'])} ({record['id']})"
    out.print(f"{state(record['state'])} {name}" + " already, nothing to do" * again)


def rm(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Ids, beginnings of ids, or names."),
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
    gateway: GatewayURL = None,
) -> None:
    """Delete runs that are over, with their checkpoints, metrics and answers. Datasets stay.

    Refused while another run continues one of them, or one that is not over starts from what it
    made; and for a name that several runs have.
    """
    api = connect(gateway)
    found = {record["id"]: record for record in (_only(api, run) for run in runs)}
    # The newest first: it may continue an older one.
    records = sorted(found.values(), key=lambda record: record["created"], reverse=True)
    if not yes:
        _confirm(records)
    gone: list[str] = []
    for record in records:
        try:
            api.delete(f"/v1/runs/{record['id']}")
        except CliError as error:
            before = f"; deleted before it: {', '.join(gone)}" if gone and as_json else ""
            raise CliError(error.message + before, error.problems, error.code) from None
        gone.append(record["id"])
        if not as_json:
            out.print(f"[green]deleted[/] {escape(record['name'])} ({record['id']})")
    if as_json:
        print_json({"deleted": gone})


def _only(api: "Gateway", run: str) -> dict[str, Any]:
    """The run that `run` means, if only one: the same command twice must not delete two."""
    from services.contracts.records import several_called

    record: dict[str, Any] = api.get(f"/v1/runs/{run}")
    names = ((one["id"], one["name"]) for one in api.pages("/v1/runs", "runs", name=run))
    if problem := several_called(run, record["id"], names):
        raise CliError(problem)
    return record


def _confirm(records: list[dict[str, Any]]) -> None:
    if not sys.stdin.isatty():
        raise CliError("what is deleted is gone for good: say --yes if nobody can be asked")
    for record in records:
        steps = f"step {record['step']}/{record['max_steps'] or '?'}"
        name = f"[bold]{escape(record['name'])}[/]"
        # Not where --json goes.
        err.print(f"{record['id']}  {name}  {state(record['state'])}  {steps}")
    what = "this run" if len(records) == 1 else f"these {len(records)} runs"
    typer.confirm(f"Delete {what}, checkpoints included?", abort=True, err=True)
