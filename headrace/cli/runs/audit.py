"""`headrace audit`: proof that a run trained each task once."""

from typing import TYPE_CHECKING, Any

import typer

from headrace.cli.options import AsJson, GatewayURL, Run, connect
from headrace.cli.output import FAILED, escape, out, print_json
from headrace.cli.runs.chains import find, last_runs

if TYPE_CHECKING:
    from headrace.cli.client import Gateway

BAD = ("lost", "duplicated", "too_stale")


def audit(run: Run, as_json: AsJson = False, gateway: GatewayURL = None) -> None:
    """Account for every task of RUN, from the ledger.

    Runs that it continues count too. For a chain, audit each step's run.

    Example:
    headrace audit RUN
    """
    api = connect(gateway)
    named = find(api, run)
    if named.kind == "run":
        raise typer.Exit(0 if _audit(api, named.record["id"], as_json) else FAILED)
    answers = {}
    clean = True
    for step, id in last_runs(named.record):
        if as_json:
            answers[step] = api.get(f"/v1/runs/{id}/audit")
            clean = clean and _clean(answers[step])
        else:
            out.print(f"[bold]{escape(step)}[/] ({id})")
            clean = _audit(api, id, as_json) and clean
    if as_json:
        print_json(answers)
    raise typer.Exit(0 if clean else FAILED)


def _clean(account: dict[str, Any]) -> bool:
    return not any(account[name] for name in BAD)


def _audit(api: "Gateway", run: str, as_json: bool) -> bool:
    """Print a run's audit. Returns whether all is well."""
    account = api.get(f"/v1/runs/{run}/audit")
    if as_json:
        print_json(account)
        return _clean(account)
    # `why` counts what was trained since as trained, too: the two are read side by side.
    rows = [("tasks", account["tasks"]), ("trained, in the checkpoint", account["trained"])]
    rows += [(f"dropped: {reason}", count) for reason, count in account["dropped"].items()]
    rows += [("in flight", account["in_flight"])]
    for name, count in rows:
        out.print(f"{escape(name):<28}{count:>10,}")
    for name in BAD:
        style = "red" if account[name] else "green"
        out.print(f"{name.replace('_', ' '):<28}[{style}]{account[name]:>10,}[/]")
    allowed = account["max_staleness_allowed"]
    of = "" if allowed is None else f" of {allowed} allowed"
    out.print(f"{'staleness seen, at most':<28}{account['max_staleness_seen']:>10,}{of}")
    out.print(
        "[dim]Tasks count as trained once a checkpoint covers them; until then they are in flight. "
        "Tasks in flight of a run that is over wait for a run that resumes it.[/]"
    )
    for text in account["unknown"]:
        out.print(f"[yellow]not known: {escape(text)}[/]", soft_wrap=True)
    for problem in account["problems"]:
        out.print(f"[red]{escape(problem)}[/]", soft_wrap=True)
    return _clean(account)
