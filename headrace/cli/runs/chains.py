"""Chains on the command line: `headrace chains`, and what other commands do with a chain."""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from headrace.cli.options import AsJson, GatewayURL, connect
from headrace.cli.output import (
    FAILED,
    FINAL,
    INTERRUPTED,
    CliError,
    ago,
    err,
    escape,
    out,
    print_json,
    reason_cell,
    state,
    steps_done,
    table,
)
from headrace.cli.runs.printed_rows import show_checked

if TYPE_CHECKING:
    from headrace.cli.client import Gateway

CHAIN = "chain-"
LOOK_SECONDS = 0.5


class Found(NamedTuple):
    """The run or the chain that RUN names."""

    kind: str
    """`run` or `chain`."""
    record: dict[str, Any]
    """As the API shows it."""

    @property
    def path(self) -> str:
        """Its place in the API."""
        return f"/v1/{self.kind}s/{self.record['id']}"


def find(api: "Gateway", reference: str) -> Found:
    """Return the run, or else the chain, that `name` means: an id, the beginning of an id, or a
    name. Raises CliError, also if a run and a chain have the same name."""
    from headrace.cli.client import NotFound

    if reference.startswith(CHAIN):
        return Found("chain", api.get(f"/v1/chains/{reference}"))
    try:
        run = api.get(f"/v1/runs/{reference}")
    except NotFound as error:
        try:
            return Found("chain", api.get(f"/v1/chains/{reference}"))
        except NotFound:
            raise error from None
    if run["name"] == reference:
        with suppress(NotFound):
            chain = api.get(f"/v1/chains/{reference}")
            raise CliError(
                f"a run and a chain are called {reference!r}: name one by its id: {run['id']} "
                f"({run['state']}), {chain['id']} ({chain['state']})"
            )
    return Found("run", run)


def present_run(chain: dict[str, Any]) -> str:
    """Return the id of the chain's present or last run. Raise CliError before the first run."""
    for step in reversed(chain["steps"][: chain["at"] + 1]):
        if step["run"] is not None:
            return str(step["run"])
    raise CliError(f"chain {chain['name']} ({chain['id']}) has no run yet: {chain['reason']}")


def run_of(api: "Gateway", reference: str) -> dict[str, Any]:
    """Return the record of the run that `reference` names. For a chain it is the present or last
    run."""
    named = find(api, reference)
    if named.kind == "run":
        return named.record
    record: dict[str, Any] = api.get(f"/v1/runs/{present_run(named.record)}")
    return record


def last_runs(chain: dict[str, Any]) -> list[tuple[str, str]]:
    """Return (step, run id) for each step of a chain that has a run, in the order of the steps. A
    step that was continued has several runs: its last run counts."""
    return [(step["name"], step["run"]) for step in chain["steps"] if step["run"] is not None]


def chains(as_json: AsJson = False, gateway: GatewayURL = None) -> None:
    """List chains, newest first, with their steps.

    Example:
    headrace chains
    """
    records = list(connect(gateway).pages("/v1/chains", "chains", limit=1000))
    if as_json:
        print_json(records)
        return
    table(
        ("ID", "NAME", "STATE", "CREATED", "STEPS"),
        [
            (
                record["id"],
                f"[bold]{escape(record['name'])}[/]",
                state(record["state"]),
                ago(record["created"]),
                " → ".join(map(_brief, record["steps"])),
            )
            for record in records
        ],
        "no chains: submit one with `headrace submit chain.yaml`",
    )


def _brief(step: dict[str, Any]) -> str:
    done = steps_done(step) if step["run"] else ""
    return f"{escape(step['name'])} {state(step['state'])} {done}".rstrip()


def show_chain(chain: dict[str, Any]) -> None:
    """Print a chain's state and its steps as a table."""
    if chain["note"]:
        out.print(f"[dim]{escape(chain['note'])}[/]", soft_wrap=True)
    why = f": {escape(chain['reason'])}" if chain["reason"] else ""
    out.print(
        f"[bold]{escape(chain['name'])}[/] ({chain['id']}) is {state(chain['state'])}{why}",
        soft_wrap=True,
    )
    table(
        ("STEP", "RUN", "KIND", "STATE", "TRAINED", "REASON"),
        [
            (
                escape(step["name"]),
                step["run"] or "–",
                escape(step["kind"]),
                state(step["state"]),
                steps_done(step),
                reason_cell(step["reason"]),
            )
            for step in chain["steps"]
        ],
        "no steps",
    )


def submit_chain(api: "Gateway", request: dict[str, Any], follow: bool, as_json: bool) -> None:
    """Submit a chain, and with `follow` follow it to its end."""
    chain = api.post("/v1/chains", json=request)
    if not as_json:
        show_checked({"warnings": chain["warnings"]})
        for step in chain["steps"]:
            name = step["name"]
            # An older gateway says neither.
            kept = {"preview": chain.get("previews", {}).get(name)}
            kept |= {"from_datasets": chain.get("from_datasets", {}).get(name)}
            if any(kept.values()):
                out.print(f"step [bold]{escape(name)}[/]")
                show_checked({"warnings": [], **kept})
    if follow:
        follow_chain(api, chain["id"], as_json)
    if as_json:
        print_json(chain)
        return
    steps = " → ".join(escape(step["name"]) for step in chain["steps"])
    out.print(
        f"[green]queued[/] [bold]{escape(chain['name'])}[/] as {chain['id']}: {steps}\n"
        f"[dim]follow it with: {escape(api.command('watch', chain['id']))}[/]",
        soft_wrap=True,
    )


def follow_chain(api: "Gateway", id: str, as_json: bool) -> None:
    """Show a chain until it ends, then end the command with its exit code."""
    try:
        chain = watch_chain(api, id, as_json)
    except KeyboardInterrupt:
        again = api.command("watch", id)
        err.print(f"[dim]{escape(id)} goes on; watch it again: {escape(again)}[/]", soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None
    if not as_json:
        show_chain(chain)
    raise typer.Exit(0 if chain["state"] == "succeeded" else FAILED)


def watch_chain(
    api: "Gateway",
    id: str,
    as_json: bool = False,
    quiet: bool = False,
    begun: Callable[[dict[str, Any]], None] = lambda step: None,
) -> dict[str, Any]:
    """Show the runs of a chain one after the other until the chain is over. Returns the chain.
    `quiet`: print nothing. `begun` is called with each step that has a run."""
    seen: set[str] = set()
    while True:
        chain: dict[str, Any] = api.get(f"/v1/chains/{id}")
        run = chain["steps"][chain["at"]]["run"]
        if run is not None and run not in seen:
            seen.add(run)
            begun(chain["steps"][chain["at"]])
            _watch_step(api, chain, as_json, quiet)
        elif chain["state"] in FINAL:
            return chain
        else:
            time.sleep(LOOK_SECONDS)


def _watch_step(api: "Gateway", chain: dict[str, Any], as_json: bool, quiet: bool) -> None:
    from headrace.cli.runs.watch import follow

    step = chain["steps"][chain["at"]]
    if quiet:
        for _ in api.events(step["run"]):
            pass
        return
    if not as_json:
        number = f"{chain['at'] + 1} of {len(chain['steps'])}"
        out.print(f"\n{escape(chain['name'])}, step {number}: [bold]{escape(step['name'])}[/]")
    follow(api, step["run"], as_json)
