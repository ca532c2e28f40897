"""`headrace report`: the report of a run or a chain, as one page."""

from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from headrace.cli.options import AsJson, GatewayURL, connect
from headrace.cli.options import Run as RunArgument
from headrace.cli.output import CliError, escape, out, print_json
from headrace.cli.runs.chains import find


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
    """Write a report of RUN, or a chain, as one page.

    The page needs no other file. The report of a run that goes on shows how it stands now. Prompts
    and answers of the run are in the page.

    Example:
    headrace report RUN
    headrace report RUN --against OTHER --out compared
    """
    api = connect(gateway)
    named = find(api, run)
    id = named.record["id"]
    if named.kind == "chain" and against is not None:
        raise CliError("--against compares runs: name a step's run, which `headrace why` shows")
    query = f"?against={quote(against, safe='')}" if against else ""
    text = api.text(f"/v1/{named.kind}s/{quote(id, safe='')}/report{query}")
    page = (folder or Path(f"report-{quote(id, safe='')}")) / "report.html"
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CliError(f"{error.filename or page}: {error.strerror or error}") from None
    if as_json:
        print_json({named.kind: id, "html": str(page)})
        return
    out.print(escape(str(page)), soft_wrap=True)
