"""Prints the log of a run, or of the installation, from the gateway."""

import json
import time
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import typer
from rich.text import Text

from headrace.cli.output import FINAL, INTERRUPTED, escape, out, print_json
from headrace.terminal import visible

if TYPE_CHECKING:
    from headrace.cli.client import Gateway

POLL_SECONDS = 1.0
STYLES = {"error": "red", "warning": "yellow", "debug": "dim"}


def show_log(
    api: "Gateway",
    run: str | None,
    lines: int,
    process: str | None,
    level: str | None,
    is_followed: bool,
    as_json: bool,
) -> None:
    """Print the newest `lines` of a run's log, or of the installation's, and go on while it is
    followed: until the run is over, or Ctrl-C."""
    path = f"/v1/runs/{run}/logs" if run else "/v1/logs"
    page = api.get(path, process=process, level=level, newest=lines)
    if as_json and not is_followed:
        print_json(page["logs"])
        return
    if not page["logs"] and not is_followed:
        of = "this run" if run else "the installation"
        out.print(f"[dim]no line of {of}'s log is kept, or none fits[/]")
        return
    try:
        for line in page["logs"]:
            _print(line, as_json)
        if is_followed:
            for line in _later(api, path, run, page["later"], process=process, level=level):
                _print(line, as_json)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def _later(
    api: "Gateway", path: str, run: str | None, cursor: str, **wanted: Any
) -> Iterator[dict[str, Any]]:
    """Yield lines as they come, until the run is over and its last lines have come."""
    while True:
        # Asked first: lines that come before the end are read after it.
        is_over = run is not None and api.get(f"/v1/runs/{run}")["state"] in FINAL
        time.sleep(POLL_SECONDS)
        while True:
            page = api.get(path, **wanted, cursor=cursor, limit=1000)
            yield from page["logs"]
            cursor = page["later"]
            if page["next"] is None:
                break
        if is_over:
            return


def _print(line: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(line))
        return
    clock = datetime.fromtimestamp(line["time"]).strftime("%H:%M:%S")
    style = STYLES.get(line["level"], "")
    head = f"[dim]{clock}[/] [bold]{escape(line['process'])}[/] "
    out.print(Text.from_markup(head) + Text(visible(line["text"]), style), soft_wrap=True)
