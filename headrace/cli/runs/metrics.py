"""`headrace metrics`: what a run has measured, by step."""

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.options import AsJson, GatewayURL, Run, connect
from headrace.cli.output import CliError, escape, print_json, table
from headrace.cli.runs.chains import run_of
from headrace.metric_rows import by_set, place_of

if TYPE_CHECKING:
    from headrace.cli.client import Gateway


def metrics(
    run: Run,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...",
            help="Names of metrics, or patterns: 'reward/*'. Default: list all.",
        ),
    ] = None,
    as_json: AsJson = False,
    gateway: GatewayURL = None,
) -> None:
    """List the metrics of RUN, or show some by step.

    Without a NAME each has its newest value. Values are exact; an evaluation stands at its step.

    Example:
    headrace metrics my-run
    headrace metrics my-run reward/mean train/entropy -o csv > curves.csv
    headrace metrics my-run 'evaluation/*/accuracy'
    """
    api = connect(gateway)
    run = run_of(api, run)["id"]
    answer = api.get(f"/v1/runs/{run}/series/names")
    known = answer["names"]
    if not names:
        if as_json:
            print_json(known)
            return
        cells = [[escape(m["name"]), number(m["value"]), f"{m['step']:,}"] for m in known]
        table(["metric", "newest", "step"], cells, "no metrics yet: the first step is not over")
        return
    wanted = chosen(names, [metric["name"] for metric in known])
    rows = by_step(api, answer["run"], wanted)
    if as_json:
        print_json(rows)
        return
    shown = ([str(row["step"]), *(number(row.get(name)) for name in wanted)] for row in rows)
    table(["step", *map(escape, wanted)], shown, "no values yet")


def chosen(patterns: list[str], known: list[str]) -> list[str]:
    """Return the metrics that the patterns mean, in their order. Raise CliError for a pattern that
    means none."""
    wanted: dict[str, None] = {}
    for pattern in patterns:
        meant = [name for name in known if name == pattern or fnmatchcase(name, pattern)]
        if not meant:
            from headrace.nearest import did_you_mean

            raise CliError(
                f"this run has no metric {pattern!r}{did_you_mean(pattern, known)}; "
                "without names `headrace metrics` lists all"
            )
        wanted |= dict.fromkeys(meant)
    return list(wanted)


def by_step(api: "Gateway", run: str, names: list[str]) -> list[dict[str, Any]]:
    """Return a row for each step that has one of the metrics. A metric that is not finite, or that
    the step does not have, is None."""
    # In the rows, metrics of evaluations do not have the held-out set in their names.
    stored = [f"evaluation/{name.rpartition('/')[2]}" for name in names if "evaluation/" in name]
    rows: dict[int, dict[str, Any]] = {}
    pages = api.pages(f"/v1/runs/{run}/metrics", "metrics", name=[*names, *stored], limit=10_000)
    for row in map(by_set, pages):
        if values := {name: row[name] for name in names if name in row}:
            _, step = place_of(row)
            place = {"step": step, "time": row.get("time"), **dict.fromkeys(names)}
            rows.setdefault(step, place).update(values)
    return [rows[step] for step in sorted(rows)]


def number(value: float | None) -> str:
    """Format a value with six significant digits; a missing one is –."""
    return "–" if value is None else f"{value:.6g}"
