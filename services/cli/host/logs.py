"""`headrace logs`: the logs of the processes on this machine."""

import contextlib
import os
import time
from collections import deque
from pathlib import Path
from typing import Annotated, TextIO

import typer

from services.cli.options import AsJson, Data, data_folder, folder_source
from services.cli.output import INTERRUPTED, CliError, escape, out, print_json, size, table


def logs(
    process: Annotated[
        str | None,
        typer.Argument(metavar="PROCESS", help="E.g. gateway, learner, rollout-0, vllm-WORKER."),
    ] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", help="Lines to begin with.", min=0)] = 40,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as lines come.")] = False,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Show the end of a process' log.

    Without PROCESS, list the logs that there are.

    Example:
    headrace logs learner --follow
    """
    folder = data_folder(data) / "logs"
    files = sorted(folder.glob("*.log"))
    if not files:
        raise CliError(
            f"there are no logs in {folder}{folder_source(data)}: name the folder of `headrace up` "
            "with --data or HEADRACE_DATA"
        )
    if process is None:
        _list_logs(files, as_json)
        return
    path = folder / f"{process}.log"
    if path not in files:
        names = ", ".join(file.stem for file in files)
        raise CliError(f"there is no log of {process!r}; there is {names}")
    with _opened(path) as file:
        last = [line.rstrip("\n") for line in deque(file, lines)]
        if as_json:
            print_json({"process": process, "path": str(path), "lines": last})
            return
        for line in last:
            typer.echo(line)
        try:
            if follow:
                _follow(path, file)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


def _opened(path: Path) -> TextIO:
    return path.open(encoding="utf-8", errors="replace")


def _follow(path: Path, file: TextIO) -> None:
    """Print new output in `path`, from the position of its open `file`."""
    while True:
        if text := file.read():
            typer.echo(text, nl=False)
            continue
        # It has been deleted, or moved, and the next one is not there yet.
        with contextlib.suppress(FileNotFoundError):
            now, ours = path.stat(), os.fstat(file.fileno())
            if not os.path.samestat(now, ours):
                after = _opened(path)
                file.close()
                file = after
                continue
            if now.st_size < file.tell():
                # A rotated log starts again from its beginning.
                file.seek(0)
                continue
        time.sleep(0.3)


def _list_logs(files: list[Path], as_json: bool) -> None:
    if as_json:
        print_json([{"process": file.stem, "path": str(file)} for file in files])
        return
    table(
        ("PROCESS", "SIZE", "FILE"),
        [
            (f"[bold]{escape(file.stem)}[/]", size(file.stat().st_size), escape(str(file)))
            for file in files
        ],
        "no logs",
    )
    out.print("\n[dim]headrace logs PROCESS shows one; --follow goes on[/]")
