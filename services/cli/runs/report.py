"""`headrace report`: the report of a run or a chain, as a page and as text."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from services.cli.options import AsJson, GatewayURL, connect
from services.cli.options import Run as RunArgument
from services.cli.output import CliError, escape, out, print_json
from services.cli.runs.chains import find, last_runs
from services.contracts.config_keys import dataset_names

if TYPE_CHECKING:
    from services.cli.client import Gateway
    from services.report import Facts
    from services.report.parts import ReportSection

SHOWN = 8
"""Answers of each step that the report may show."""


def report(
    run: RunArgument,
    against: Annotated[
        str | None, typer.Option(metavar="RUN", help="Another run to compare it with.")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--out", metavar="FOLDER", help="Where to write. Default: report-ID here."),
    ] = None,
    as_json: AsJson = False,
    gateway: GatewayURL = None,
) -> None:
    """Write a report of RUN, or a chain, as HTML and Markdown.

    report.html needs no other file; report.md has its plots beside it.

    Example:
    headrace report RUN --against OTHER
    """
    api = connect(gateway)
    named = find(api, run)
    id = named.record["id"]
    place = folder or Path(f"report-{quote(id, safe='')}")
    if named.kind == "chain":
        title, parts = _chain(api, named.record, against)
    else:
        title, parts = _run(api, id, against)
    _write(place, title, parts)
    page, text = place / "report.html", place / "report.md"
    if as_json:
        print_json({named.kind: id, "html": str(page), "markdown": str(text)})
        return
    out.print(f"{escape(str(page))}\n{escape(str(text))}", soft_wrap=True)


def _run(api: "Gateway", run: str, against: str | None) -> "tuple[str, list[ReportSection]]":
    from services.report import sections

    facts = gathered(api, run)
    other = gathered(api, against) if against is not None else None
    return f"Run {facts.title}", sections(facts, other)


def _chain(
    api: "Gateway", chain: dict[str, Any], against: str | None
) -> "tuple[str, list[ReportSection]]":
    from services.report import chain_sections

    if against is not None:
        raise CliError("--against compares runs: name a step's run, which `headrace why` shows")
    steps = [(step, gathered(api, id)) for step, id in last_runs(chain)]
    return f"Chain {chain['name']} ({chain['id']})", chain_sections(chain, steps)


def _write(folder: Path, title: str, parts: "list[ReportSection]") -> None:
    from services.report import write

    try:
        folder.mkdir(parents=True, exist_ok=True)
        write(folder, title, parts)
    except OSError as error:
        raise CliError(f"{error.filename or folder}: {error.strerror or error}") from None


def gathered(api: "Gateway", run: str) -> "Facts":
    """Read the facts of a run from the API. Raise CliError."""
    import time
    from importlib.metadata import version

    from services.report import Facts
    from services.report.facts import with_names

    record = api.get(f"/v1/runs/{run}")
    id, config, recipe = record["id"], record["config"], record.get("recipe") or record["name"]
    newest = api.get(f"/v1/runs/{id}/samples", limit=SHOWN)["samples"]
    ids = sorted({*dataset_names(config).values()})
    datasets = {name: _or_none(api, "/v1/datasets", name) for name in ids}
    names = {name: dataset["name"] for name, dataset in datasets.items() if dataset}
    return Facts(
        record=with_names(record, names),
        metrics=list(api.pages(f"/v1/runs/{id}/metrics", "metrics")),
        first=api.get(f"/v1/runs/{id}/samples", step=1, limit=SHOWN)["samples"],
        last=[row for row in newest if 1 < row["step"] == newest[0]["step"]],
        audit=api.get(f"/v1/runs/{id}/audit"),
        dataset=datasets.get(str(config.get("data", {}).get("dataset"))),
        workers=list(api.pages("/v1/workers", "workers", pool=record["pool"])),
        recipe=(_or_none(api, "/v1/recipes", recipe) or {}).get("config"),
        version=version("headrace"),
        made=time.time(),
    )


def _or_none(api: "Gateway", path: str, name: str) -> Any:
    """Read one resource. Return None if it does not exist (any more)."""
    from services.cli.client import Away

    try:
        return api.get(f"{path}/{quote(name, safe='')}")
    except Away:
        raise
    except CliError:
        return None
