"""`headrace open`: the page, in a browser."""

import os
import sys
from typing import Annotated

import typer

from headrace.cli import completion
from headrace.cli.options import AsJson, GatewayURL, connect
from headrace.cli.output import out, print_json
from headrace.cli.runs.chains import find


def open_page(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="A run or a chain. Default: the list of runs.",
            autocompletion=completion.runs,
        ),
    ] = None,
    as_json: AsJson = False,
    gateway: GatewayURL = None,
) -> None:
    """Open the page in a browser, logged in.

    Without a display it prints the address. The link logs in once, within an hour.

    Example:
    headrace open RUN
    """
    api = connect(gateway)
    path = "/"
    if run is not None:
        named = find(api, run)
        path = f"/{named.kind}s/{named.record['id']}"
    link = api.login_link(path)
    if as_json:
        print_json({"url": link})
        return
    if _has_display() and sys.stdout.isatty():
        import webbrowser

        if webbrowser.open(link):
            return
    out.print(link, markup=False, soft_wrap=True)


def _has_display() -> bool:
    return sys.platform == "darwin" or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or os.environ.get("BROWSER")
    )
