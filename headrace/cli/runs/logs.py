"""`headrace logs`: the log of a run, and the files of the processes on this machine."""

import contextlib
import os
import time
from collections import deque
from pathlib import Path
from typing import Annotated, TextIO

import typer

from headrace.cli import completion
from headrace.cli.options import AsJson, Data, GatewayURL, connect, data_folder
from headrace.cli.output import INTERRUPTED, CliError, escape, out, print_json, size, table
from headrace.cli.runs.chains import find, present_run
from headrace.cli.runs.run_logs import show_log


def logs(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN|PROCESS",
            help="A run; or a process on this machine: gateway, learner, rollout-0, vllm-WORKER.",
            autocompletion=completion.runs,
        ),
    ] = None,
    lines: Annotated[
        int, typer.Option("--lines", "-n", help="Lines to begin with.", min=0, max=1000)
    ] = 40,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as lines come.")] = False,
    process: Annotated[
        str | None,
        typer.Option(help="Of a run: learner, rollout, vllm, gateway, reward, or learner/0."),
    ] = None,
    level: Annotated[
        str | None, typer.Option(help="Of a run, at least: debug, info, warning or error.")
    ] = None,
    data: Data = None,
    as_json: AsJson = False,
    gateway: GatewayURL = None,
) -> None:
    """Show the end of a run's log, or of a process' log file.

    A run's log has the lines of its learner, its workers and their vLLM on all hosts, and the
    warnings of the gateway and the reward service from that time. A process on this machine has a
    file with all that it printed. Without a name, list the files; without files, or with --process,
    show the log of the installation.

    Example:
    headrace logs RUN --follow
    headrace logs RUN --process vllm --level warning
    headrace logs learner
    """
    folder = data_folder(data) / "logs"
    files = sorted(folder.glob("*.log"))
    filters = process is not None or level is not None
    if name is None and files and not filters and not follow:
        _list_logs(files, as_json)
        return
    path = folder / f"{name}.log"
    if path in files and not filters:
        _show_file(str(name), path, lines, follow, as_json)
        return
    api = connect(gateway, data)
    run = None
    if name is not None:
        try:
            named = find(api, name)
        except CliError as error:
            names = ", ".join(file.stem for file in files)
            local = f"there is no log of {name!r}; there is {names}. As a run: " if files else ""
            raise CliError(local + error.message, error.problems, error.code) from None
        run = present_run(named.record) if named.kind == "chain" else named.record["id"]
    show_log(api, run, lines, process, level, follow, as_json)


def _show_file(process: str, path: Path, lines: int, follow: bool, as_json: bool) -> None:
    """Print the end of a process' file, and go on while it is followed."""
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
    hint = "headrace logs PROCESS shows one, headrace logs RUN a run's log; --follow goes on"
    out.print(f"\n[dim]{hint}[/]")
