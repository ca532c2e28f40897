"""`headrace runs`, `watch`, `cancel` and `rm`."""

import sys
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.options import AsJson, GatewayURL, Run, connect
from headrace.cli.output import (
    CliError,
    ago,
    err,
    escape,
    out,
    print_json,
    reason_cell,
    size,
    state,
    steps_done,
    table,
)
from headrace.cli.runs.chains import Found, find, follow_chain
from headrace.wording import counted

if TYPE_CHECKING:
    from headrace.cli.client import Gateway

PAGE = 1000
"""Runs asked for at once."""
FEW = 50
"""Runs that are listed unless --limit says otherwise."""


def runs(
    state_: Annotated[
        list[str] | None,
        typer.Option("--state", "-s", metavar="STATE", help="Only these, e.g. running. Repeat."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Only runs of this name.")] = None,
    tag: Annotated[
        list[str] | None, typer.Option(metavar="TAG", help="Only runs with these tags. Repeat.")
    ] = None,
    search: Annotated[
        str | None,
        typer.Option(
            "--search", "-q", metavar="TEXT", help="In name, id, tags, notes, model, dataset."
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="0: all.")] = FEW,
    as_json: AsJson = False,
    gateway: GatewayURL = None,
) -> None:
    """List runs, newest first.

    Example:
    headrace runs --state running --state queued
    headrace runs --search gsm8k --limit 10 -o csv
    """
    asked: dict[str, Any] = {"state": state_ or None, "name": name, "tag": tag or None, "q": search}
    # One more than is shown tells whether there are more.
    page = min(limit + 1, PAGE) if limit else PAGE
    pages = connect(gateway).pages("/v1/runs", "runs", limit=page, **asked)
    records = list(islice(pages, limit + 1 if limit else None))
    has_more = bool(limit) and len(records) > limit
    records = records[: limit or None]
    if as_json:
        print_json(records)
    else:
        _print_runs(records, any(asked.values()))
    if has_more:
        err.print(f"[dim]there are more: --limit 0 lists all, --limit {2 * limit} twice as many[/]")


def _print_runs(records: list[dict[str, Any]], is_filtered: bool) -> None:
    columns = ("ID", "NAME", "KIND", "STATE", "STEP", "REWARD", "CREATED", "SIZE", "REASON")
    empty = "no runs: submit one with `headrace submit RECIPE` (see `headrace recipes`)"
    table(
        columns,
        [
            (
                record["id"],
                f"[bold]{escape(record['name'])}[/]",
                record["kind"],
                state(record["state"]),
                steps_done(record),
                _reward(record),
                ago(record["created"]),
                "" if record["disk_bytes"] is None else size(record["disk_bytes"]),
                reason_cell(record["reason"] or record.get("phase", "")),
            )
            for record in records
        ],
        "no run is like this: `headrace runs` lists all" if is_filtered else empty,
    )


def _reward(record: dict[str, Any]) -> str:
    """Return the newest reward of a run; for a supervised run its loss."""
    # An older gateway tells neither.
    reward, loss = record.get("reward"), record.get("loss")
    if reward is not None:
        return f"{reward:.3f}"
    return "" if loss is None else f"loss {loss:.3f}"


def watch(run: Run, as_json: AsJson = False, gateway: GatewayURL = None) -> None:
    """Follow RUN, or a chain, until it ends.

    Exit code 0: it succeeded, 1: it did not. Ctrl-C leaves it running. With --json each event is
    one line of JSON.

    Example:
    headrace watch RUN
    """
    api = connect(gateway)
    named = find(api, run)
    if named.kind == "chain":
        follow_chain(api, named.record["id"], as_json)
    follow_run(api, named.record["id"], as_json)


def follow_run(api: "Gateway", run: str, as_json: bool) -> None:
    """Show `run` until it ends, then end the command with its exit code."""
    from headrace.cli.runs.watch import watch_run

    raise typer.Exit(watch_run(api, run, as_json))


def cancel(
    run: Run,
    now: Annotated[
        bool,
        typer.Option(
            "--now",
            help="End it at once. Steps since the newest checkpoint may be lost: it says which.",
        ),
    ] = False,
    as_json: AsJson = False,
    gateway: GatewayURL = None,
) -> None:
    """Cancel RUN, or a chain.

    `headrace resume RUN` continues it later from its checkpoint.

    Example:
    headrace cancel RUN
    """
    api = connect(gateway)
    named = find(api, run)
    before = named.record
    record = api.post(f"{named.path}/cancel", params={"now": now})
    again = before["state"] in ("cancelling", "cancelled")
    over = before["state"] == "cancelled" or (again and not now)
    if as_json:
        print_json(record)
        return
    name = f"{escape(record['name'])} ({record['id']})"
    out.print(f"{state(record['state'])} {name}" + " already, nothing to do" * over)
    if now and not over and named.kind == "run":
        out.print(escape(what_is_lost(record)), soft_wrap=True)


def pause(run: Run, as_json: AsJson = False, gateway: GatewayURL = None) -> None:
    """Pause RUN after its present step, until `headrace resume RUN`.

    Workers begin no new group of it, and finish those in flight. It keeps its learner, its workers
    and their memory: a queued run of its pool still waits.

    Example:
    headrace pause RUN
    """
    record = connect(gateway).post(f"/v1/runs/{run}/pause")
    if as_json:
        print_json(record)
        return
    name = f"{escape(record['name'])} ({record['id']})"
    out.print(f"{state(record['state'])} {name}: {escape(record['phase'])}", soft_wrap=True)


def what_is_lost(run: dict[str, Any]) -> str:
    """Say which work `cancel --now` has lost of a run, by the gateway's answer."""
    if run["started"] is None:
        return "It had not started: nothing is lost."
    kept, trained = run["committed_step"], run["step"]
    # An older gateway does not tell.
    if not run.get("is_released", False):
        return (
            "Its learner works on it still, and may write a checkpoint of its present step: "
            f"`headrace runs` shows it. Until then its newest one is that of step "
            f"{kept}. Groups in flight are dropped."
        )
    resume = f"`headrace resume {run['id']}`"
    if run["checkpoint"] is None:
        lost = f"its {counted(trained, 'step')} and " if trained else ""
        return (
            f"It has no checkpoint: {lost}the groups in flight are lost. {resume} begins it anew."
        )
    lost = "No step is lost."
    if trained > kept:
        steps = f"Step {trained}" if trained == kept + 1 else f"Steps {kept + 1} to {trained}"
        lost = f"{steps} {'is' if trained == kept + 1 else 'are'} lost."
    return (
        f"It keeps its checkpoint of step {kept}. {lost} Groups in flight are dropped. "
        f"{resume} goes on after the checkpoint, and samples them again."
    )


def rm(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Ids, beginnings of ids, or names."),
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
    gateway: GatewayURL = None,
) -> None:
    """Delete runs that are over, or a chain with its runs.

    Their checkpoints, metrics and answers are deleted; datasets stay. A run is kept while another
    run continues it, or starts from what it made. A name that several runs have is refused.

    Example:
    headrace rm RUN --yes
    """
    api = connect(gateway)
    named = {target.record["id"]: target for target in (find(api, run) for run in runs)}
    # The newest first: it may continue an older one.
    ordered = sorted(named.values(), key=lambda target: target.record["created"], reverse=True)
    if not yes:
        _confirm(ordered)
    gone: list[str] = []
    for target in ordered:
        record = target.record
        try:
            api.delete(target.path)
        except CliError as error:
            before = f"; deleted before it: {', '.join(gone)}" if gone and as_json else ""
            raise CliError(error.message + before, error.problems, error.code) from None
        gone.append(record["id"])
        if not as_json:
            out.print(f"[green]deleted[/] {escape(record['name'])} ({record['id']})")
    if as_json:
        print_json({"deleted": gone})


def _confirm(ordered: list[Found]) -> None:
    if not sys.stdin.isatty():
        raise CliError("what is deleted is gone for good: say --yes if nobody can be asked")
    for target in ordered:
        record = target.record
        size = f"step {steps_done(record) or 0}" if target.kind == "run" else ""
        if target.kind == "chain":
            size = f"{counted(sum(len(step['runs']) for step in record['steps']), 'run')}"
        name = f"[bold]{escape(record['name'])}[/]"
        # Not where --json goes.
        err.print(f"{record['id']}  {name}  {state(record['state'])}  {size}")
    kinds = {target.kind for target in ordered}
    nouns = "s and ".join(sorted(kinds))
    what = f"this {nouns}" if len(ordered) == 1 else f"these {len(ordered)} {nouns}s"
    typer.confirm(f"Delete {what}, checkpoints included?", abort=True, err=True)
