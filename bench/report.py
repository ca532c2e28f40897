"""The results as tables for a terminal."""

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.aims import ORIENTATION


def show(results: dict[str, Any], console: Console) -> None:
    """Print everything that was measured, the aims, and what failed."""
    machine = results["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    console.print(
        f"\n[bold]Headrace on this machine[/]: {machine['cores']} cores "
        f"({escape(machine['cpu'])}), {machine['memory_gib']} GiB; "
        f"Python {machine['python']}, {versions}; commit {machine['commit'] or 'unknown'}"
    )
    if machine["load_before"] > 0.5:
        console.print(
            f"[yellow]Something else was running (load {machine['load_before']}): the figures are "
            "too low.[/]"
        )
    if results["training"]:
        console.print(_training(results["training"]))
        console.print(
            "[dim]steady steps only: warm-up steps are left out, rates are totals over the wall "
            "time of the others; shares are of that time; tokens are completion tokens[/]"
        )
    if results["generation"]:
        console.print(_generation(results["generation"]))
    console.print(_aims(results["aims"]))
    console.print(
        f"[dim]orientation: {ORIENTATION['what']}: {ORIENTATION['samples_per_second']:.0f} "
        f"samples/s, {ORIENTATION['tokens_per_second']:,.0f} tokens/s "
        f"({ORIENTATION['source']})[/]"
    )
    for part, reason in results["failed"].items():
        console.print(f"[bold red]{part} failed:[/] {escape(reason)}", soft_wrap=True)


def _training(parts: dict[str, dict[str, Any]]) -> Table:
    table = Table(title="Training, 32 prompts x 8 samples x 64 new tokens", title_justify="left")
    table.add_column("")
    for part in parts.values():
        table.add_column(f"η = {part['eta']}", justify="right")

    def line(label: str, cell: Any) -> None:
        table.add_row(label, *(cell(part) for part in parts.values()))

    def update(name: str) -> Any:
        def cell(part: dict[str, Any]) -> str:
            found = part["updates"]
            if found is None:
                return "-"
            return f"{1e3 * found[f'{name}_median']:.0f} / {1e3 * found[f'{name}_max']:.0f}"

        return cell

    line("steps: warm-up + measured", lambda p: f"{p['warmup']} + {p['steps']}")
    line("trained samples/s", lambda p: f"[bold]{p['samples_per_second']:.1f}[/]")
    line("trained tokens/s", lambda p: f"[bold]{p['tokens_per_second']:,.0f}[/]")
    line("step, median s", lambda p: f"{p['step_median']:.2f}")
    line("learner waits for groups", lambda p: f"{p['learner_waits']:.0%}")
    line("learner trains", lambda p: f"{p['training']:.0%}")
    line("workers wait for admission", lambda p: f"{p['workers_wait']:.0%}")
    line("staleness, mean versions", lambda p: f"{p['staleness']:.2f}")
    line("step end → version live, ms, median / max", update("live"))
    line("generation paused, ms, median / max", update("pause"))
    line("bytes per token on the wire", lambda p: f"{p['wire_bytes_per_token']:.2f}")
    return table


def _generation(part: dict[str, Any]) -> Table:
    table = Table(title="Generation alone, tokens/s", title_justify="left")
    table.add_column("")
    rounds = part["rounds"]
    for number in range(len(rounds["worker"])):
        table.add_column(f"round {number + 1}", justify="right")
    table.add_column("all", justify="right")
    for name, label in (("worker", "rollout worker"), ("offline", "LLM.generate")):
        rates = [f"{one['tokens'] / one['seconds']:,.0f}" for one in rounds[name]]
        table.add_row(label, *rates, f"[bold]{part[f'{name}_tokens_per_second']:,.0f}[/]")
    blank = [""] * len(rounds["worker"])
    table.add_row("ratio", *blank, f"[bold]{part['ratio']:.3f}[/]")
    return table


def _aims(aims: list[dict[str, Any]]) -> Table:
    table = Table(title="Aims", title_justify="left")
    for name in ("", "measured", "aim", ""):
        table.add_column(name, justify="left" if not name else "right")
    verdicts = {True: "[green]met[/]", False: "[red]not met[/]", None: "[dim]not measured[/]"}
    for aim in aims:
        figure = "-" if aim["figure"] is None else f"{aim['figure']:.2f}"
        table.add_row(
            aim["name"], figure, f"{aim['relation']} {aim['limit']:g}", verdicts[aim["met"]]
        )
    return table
