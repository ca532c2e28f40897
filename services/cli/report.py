"""`headrace report`: what became of a run, as a page and as text."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from services.cli.options import AsJson, GatewayURL, connect
from services.cli.options import Run as RunArgument
from services.cli.output import CliError, escape, out, print_json

if TYPE_CHECKING:
    from services.cli.client import Gateway
    from services.report import Facts

SHOWN = 8
"""Answers that are asked for of a step."""


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
    """Write a report of RUN: report.html, which needs no other file, and report.md with its plots.

    Also while it works. Prompts and answers of the run are in it.
    """
    from services.report import as_html, as_markdown, sections
    from services.report.markdown import PLOTS
    from services.report.parts import Picture

    api = connect(gateway)
    facts = gathered(api, run)
    other = gathered(api, against) if against is not None else None
    try:
        found = sections(facts, other)
    except ImportError as error:
        raise CliError(f"plots need matplotlib ({error}): pip install matplotlib") from None
    place = folder or Path(f"report-{quote(facts.record['id'], safe='')}")
    title = f"Run {facts.title}"
    try:
        (place / PLOTS).mkdir(parents=True, exist_ok=True)
        for section in found:
            for part in section.parts:
                if isinstance(part, Picture):
                    (place / PLOTS / f"{part.name}.png").write_bytes(part.png)
        page, text = place / "report.html", place / "report.md"
        page.write_text(as_html(title, found), encoding="utf-8")
        text.write_text(as_markdown(title, found), encoding="utf-8")
    except OSError as error:
        raise CliError(f"{error.filename or place}: {error.strerror or error}") from None
    if as_json:
        print_json({"run": facts.record["id"], "html": str(page), "markdown": str(text)})
        return
    out.print(f"{escape(str(page))}\n{escape(str(text))}", soft_wrap=True)


def gathered(api: "Gateway", run: str) -> "Facts":
    """What the API says of a run. Raises CliError."""
    import time
    from importlib.metadata import version

    from services.report import Facts

    record = api.get(f"/v1/runs/{run}")
    id, config = record["id"], record["config"]
    newest = api.get(f"/v1/runs/{id}/samples", limit=SHOWN)["samples"]
    return Facts(
        record=record,
        metrics=list(api.pages(f"/v1/runs/{id}/metrics", "metrics", "start")),
        first=api.get(f"/v1/runs/{id}/samples", step=1, limit=SHOWN)["samples"],
        last=[one for one in newest if 1 < one["step"] == newest[0]["step"]],
        audit=api.get(f"/v1/runs/{id}/audit"),
        dataset=_or_none(api, "/v1/datasets", str(config.get("data", {}).get("dataset"))),
        workers=api.get("/v1/workers", pool=record["pool"])["workers"],
        recipe=(_or_none(api, "/v1/recipes", record["name"]) or {}).get("config"),
        version=version("headrace"),
        made=time.time(),
    )


def _or_none(api: "Gateway", path: str, name: str) -> Any:
    """What is there; None where nothing is (deleted, or never there)."""
    from services.cli.client import Away

    try:
        return api.get(f"{path}/{quote(name, safe='')}")
    except Away:
        raise
    except CliError:
        return None
