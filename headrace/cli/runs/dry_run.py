"""Print a dry run for people."""

from typing import Any

import typer

from headrace.cli.output import FAILED, escape, out, print_json, table
from headrace.cli.runs.printed_rows import show_checked
from headrace.wording import ESTIMATED, counted

UNKNOWN_GPU = "a GPU; none of this pool is known"


def show_dry_run(answer: dict[str, Any], as_json: bool) -> None:
    """Print the answer of `POST /v1/runs?dry_run=true`. Raises typer.Exit if the run would be
    refused."""
    if as_json:
        print_json(answer)
    else:
        _show(answer)
    if answer["refusals"]:
        raise typer.Exit(FAILED)


def show_chain_dry_run(answer: dict[str, Any], as_json: bool) -> None:
    """Print the answer of `POST /v1/chains?dry_run=true`, step by step."""
    if as_json:
        print_json(answer)
    else:
        for number, step in enumerate(answer["steps"]):
            out.print(f"{chr(10) if number else ''}step [bold]{escape(step['name'])}[/]")
            _show(step)
    if any(step["refusals"] for step in answer["steps"]):
        raise typer.Exit(FAILED)


def _show(answer: dict[str, Any]) -> None:
    show_checked(answer)
    # An older gateway knows no mixtures.
    for share in answer.get("mixture") or ():
        rows = f"{share['per_epoch']:,} of an epoch's rows, from {counted(share['rows'], 'row')}"
        out.print(f"[bold]dataset[/]  {escape(share['name'])}: {share['share']:.0%}, {rows}")
    estimate = answer["estimate"]
    if estimate is None:
        out.print("[dim]the model is not on the gateway's host: what the run needs is not known[/]")
        return
    needs = [(n, estimate[n]) for n in ("learner", "rollout") if estimate[n] is not None]
    for name, need in needs:
        out.print(f"[bold]{name}[/]  {escape(need['how'])}")
        on_cpu = need["on_cpu"]
        unknown = "memory; how much its host has is not known" if on_cpu else UNKNOWN_GPU
        table(("", "of its host" if on_cpu else "per GPU"), list(_rows(need, unknown)), "")
    # An older gateway says nothing of the host.
    if host := estimate.get("host"):
        out.print("[bold]host[/]     of the learner")
        named = host | {"gpu": "free for it"}
        table(("", "memory"), list(_rows(named, "a host that is not known")), "")
    if answer["max_steps"] is not None:
        out.print(f"[bold]length[/]   {counted(answer['max_steps'], 'step')}")
    out.print("[bold]disk[/]     of the data volume")
    disk = estimate["disk"] | {"gpu": "free"}
    table(("", "disk"), list(_rows(disk, "a volume that is not known")), "")
    for note in estimate["notes"]:
        out.print(f"[dim]{escape(note)}[/]")
    if answer["refusals"]:
        out.print("[red]it would be refused:[/]")
        for refusal in answer["refusals"]:
            out.print(f"  {escape(refusal)}")
    elif estimate["fits"] and disk["fits"] is not False:
        out.print("[green]it fits[/]")


def _rows(need: dict[str, Any], unknown: str) -> list[tuple[str, str]]:
    # A newer gateway may know parts that this command does not.
    parts = [(ESTIMATED.get(name, escape(name)), value) for name, value in need["parts"].items()]
    rows = [(f"  {words}", _gb(value)) for words, value in parts]
    of = unknown if need["memory"] is None else _gb(need["memory"])
    style = {True: "green", False: "red", None: "default"}[need["fits"]]
    named = "free for it on its host" if need.get("on_cpu") else need["gpu"]
    name = f" ({escape(named)})" if named and need["memory"] is not None else ""
    rows.append(("  needed", f"[{style}]{_gb(need['needed'])}[/] of {of}{name}"))
    return rows


def _gb(count: float) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e8 else f"{count / 1e6:,.1f} MB"
